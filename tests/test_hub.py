"""Loading by a hub id: what is asked of huggingface_hub, and what is said of its errors."""

import huggingface_hub
import pytest

from models import index
from models.checkpoints import load_pipeline
from models.index import CheckpointError
from tests.tiny import tiny_pipeline


@pytest.mark.parametrize(("source", "revision"), [("me/deblur", None), ("me/deblur@v1.2", "v1.2")])
def test_a_name_and_its_revision_are_asked_for_and_only_a_checkpoint_s_files(tmp_path, monkeypatch, source, revision):
    tiny_pipeline().save_pretrained(tmp_path)
    asked = []

    def download(name, **options):
        asked.append((name, options))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert load_pipeline(source, precision="fp32").config.residual_scale == 0.1
    assert asked == [("me/deblur", {"revision": revision, "allow_patterns": index.FILES})]
    assert index.FILES == ["*.json", "*.safetensors", "*.onnx", "*.md"]  # no code, no pickle


def test_what_the_hub_refuses_is_one_sentence_without_the_token(monkeypatch):
    def download(name, **options):
        raise OSError("no entry for Bearer hf_secret\nat all")

    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(CheckpointError) as caught:
        load_pipeline("me/nothing")
    wanted = "checkpoint me/nothing is not a folder here, and the hub did not give it: no entry for Bearer ***"
    assert str(caught.value) == wanted
