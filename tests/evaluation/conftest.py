import urllib.request

import pytest


@pytest.fixture
def no_network(monkeypatch, tmp_path):
    """An empty weights cache, whose folder of files is returned, and a proxy that refuses at once."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    refusing = urllib.request.ProxyHandler({"https": "http://127.0.0.1:9"})
    urllib.request.install_opener(urllib.request.build_opener(refusing))
    yield tmp_path / "hub" / "checkpoints"
    urllib.request.install_opener(None)
