import os

from hypothesis import settings

if "PYTEST_XDIST_WORKER" in os.environ:  # the tests share the cores; also what they start reads this
    os.environ["OMP_NUM_THREADS"] = "1"

# The same examples in every run, so that a verdict depends on the code alone.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")
