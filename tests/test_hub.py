"""Loading from the hub: real processes against a small server on loopback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.hub import Hub
from tests.tiny import tiny_pipeline

TOKEN = "hf_of_the_owner"
WEIGHTS = "predictor/diffusion_pytorch_model.safetensors"
LOAD = """
import sys
from models.checkpoints import load_pipeline
from models.weights import CheckpointError
for name in map(str.strip, sys.stdin):
    try:
        pipeline = load_pipeline(name, precision="fp32")
        print(float(sum(p.abs().sum() for p in pipeline.predictor.parameters())), flush=True)
    except CheckpointError as error:
        print(f"error: {error}", flush=True)
"""


@pytest.fixture
def folder(tmp_path):
    tiny_pipeline().save_pretrained(tmp_path / "checkpoint")
    (tmp_path / "checkpoint" / "README.md").write_text("---\nlicense: cc-by-4.0\n---\n# A card\n")
    (tmp_path / "checkpoint" / "secret.txt").write_text("no part of a checkpoint")
    return tmp_path / "checkpoint"


def start(command, tmp_path, hub, **environment):
    settings = {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "home"),
        "HF_TOKEN": TOKEN,
        "HF_HUB_DISABLE_XET": "1",  # the server speaks the protocol below it
        "HF_HUB_ETAG_TIMEOUT": "2",
    }
    kept = {name: value for name, value in os.environ.items() if "HF_" not in name and "proxy" not in name.lower()}
    return subprocess.Popen(
        [sys.executable, *map(str, command)],
        env=kept | settings | environment,
        cwd=Path(__file__).parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ask(process, name):
    process.stdin.write(f"{name}\n")
    process.stdin.flush()
    return process.stdout.readline()


def end(process):
    out, errors = process.communicate(timeout=120)
    assert TOKEN not in out + errors
    return process.returncode


def test_load_by_name_and_revision_and_from_the_cache(folder, tmp_path):
    total = pytest.approx(sum(value.abs().sum() for value in load_file(folder / WEIGHTS).values()).item())
    with Hub() as hub:
        stored = {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}
        first = hub.commit("me/deblur", "main", stored)
        hub.commit("me/deblur", "broken", stored | {"model_index.json": b"{}"})
        online = start(["-c", LOAD], tmp_path, hub)
        assert float(ask(online, "me/deblur")) == total
        assert float(ask(online, f"me/deblur@{first}")) == total
        assert "not a DeblurPipeline" in ask(online, "me/deblur@broken")
        assert ask(online, "me/nothing").startswith("error: checkpoint me/nothing is not a folder here, and the hub")
        assert list((tmp_path / "home").rglob("README.md")) and not list((tmp_path / "home").rglob("secret.txt"))

        asked = len(hub.requests)
        offline = start(["-c", LOAD], tmp_path, hub, HF_HUB_OFFLINE="1")
        assert float(ask(offline, "me/deblur")) == total
        answer = ask(offline, "me/other")
        assert answer.startswith("error: checkpoint me/other is not a folder here, and the hub did not give it: ")
        assert "HF_HUB_OFFLINE" in answer and len(hub.requests) == asked
        assert end(offline) == 0
    # Nobody answers at that address any more.
    assert float(ask(online, "me/deblur")) == total
    assert ask(online, "me/another").startswith("error: checkpoint me/another is not a folder here, and the hub")
    assert end(online) == 0
    assert not [f for f in tmp_path.rglob("*") if f.is_file() and TOKEN.encode() in f.read_bytes()]
