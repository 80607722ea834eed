"""A bucket."""

from importlib.util import find_spec

import pytest


@pytest.fixture(scope="module")
def bucket():
    """A bucket, and an environment in which it is the only one."""
    for name in ("ray", "moto"):
        if find_spec(name) is None:
            pytest.skip("needs requirements-extra.txt")
    from deblur.tools.batch.command import WITHOUT_REPORTS
    from tests.batch.bucket import Bucket  # not above: it imports moto

    own = Bucket()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (own.environment | {"RAY_AUTH_MODE": "disabled"} | WITHOUT_REPORTS).items():
            patch.setenv(name, value)
        patch.delenv("RAY_ADDRESS", raising=False)
        yield own
    own.stop()
