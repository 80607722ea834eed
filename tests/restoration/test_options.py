"""Which options of sample.py a restoration depends on."""

from dataclasses import fields

from deblur.restoration.manifest import Manifest
from deblur.restoration.options import Options
from deblur.restoration.restorer import Restorer
from tests.tiny import tiny_pipeline

FACTS_OF = {"checkpoint": "checkpoint_sha256", "preset": "settings"}  # what stands for them in the manifest
NO_FACTS = {"output", "device", "classes", "provider", "compile", "batch_size", "memory", "overwrite"}


def test_the_manifest_has_every_option_that_changes_a_result(tmp_path):
    """A new option of sample.py is a fact, or is named here as one that changes no pixel but by rounding."""
    tiny_pipeline().save_pretrained(tmp_path)
    restorer = Restorer(Options("out", checkpoint=str(tmp_path), device="cpu", precision="fp32"), {"steps": 1})
    wanted = {FACTS_OF.get(field.name, field.name) for field in fields(Options)} - NO_FACTS
    assert restorer.facts.keys() == wanted
    photo, restored = tmp_path / "a.png", tmp_path / "out" / "a.png"
    restored.parent.mkdir()
    for file in (photo, restored):
        file.write_bytes(b"image")
    manifest = Manifest(restored.parent)
    manifest.add(photo, [restored], restorer.facts)
    assert manifest.has(photo, [restored], restorer.facts)
    for name in restorer.facts:
        assert not manifest.has(photo, [restored], restorer.facts | {name: "another"}), name
