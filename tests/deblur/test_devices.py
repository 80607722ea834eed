"""What a device supports, and the cores that a process may use."""

import psutil

from deblur.devices import core_count
from tests.conftest import fresh

RESTRICTED = """
import psutil
psutil.Process().cpu_affinity([psutil.Process().cpu_affinity()[0]])
from deblur.devices import core_count
print(core_count())
"""


def test_a_process_that_is_restricted_to_a_core_counts_one():
    done = fresh(RESTRICTED)
    assert done.stdout == "1\n", done.stderr


def test_where_no_process_can_be_restricted_all_cores_count(monkeypatch):
    monkeypatch.delattr(psutil.Process, "cpu_affinity")
    assert core_count() == psutil.cpu_count()
