"""The sampling benchmark on tiny pictures: that it measures, merges and says what it ran on, not what comes out."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_sampling_measures_and_merges(tmp_path):
    output = tmp_path / "sampling.json"
    output.write_text(json.dumps({"cases": {"1/fp32-nchw/eager": {"seconds": 100.0}}}))
    command = [sys.executable, "-m", "benchmarks.sampling", "--quick", "true", "--repeats", "1", "--output", output]
    subprocess.run([*command, "--cases", "1/bf16*/eager"], cwd=ROOT, check=True, capture_output=True)
    found = json.loads(output.read_text())
    new = found["cases"]["1/bf16-channels_last/eager"]
    assert set(found["cases"]) == {"1/fp32-nchw/eager", "1/bf16-channels_last/eager"}
    assert new["seconds"] > 0 and new["peak_mib"] > 100 and new["gflop_step"] > 0 and new["commit"] and new["device"]
    assert found["times_as_fast_as_plain_fp32"]["1/bf16-channels_last/eager"] > 1
