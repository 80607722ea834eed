"""The command line of app.py: its flags, the address it serves at, and how it starts."""

import os
import socket
from dataclasses import fields

import httpx
import pytest

import app
from tests.conftest import fresh
from tests.tiny import tiny_pipeline
from tests.web.conftest import serving

pytestmark = pytest.mark.xdist_group("page")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["photo.jpg"], "photo.jpg belongs to no flag (--help lists the flags)"),
        (["--prot", "80"], "--prot is unknown: did you mean --port?"),
        (["--port", "many"], "--port is a whole number, not many"),
        (["--auth", "name"], "--auth is NAME:PASSWORD"),
        (["--max_pixels", "0"], "--max_pixels must be above 0, got 0"),
        (["--checkpoint", "nowhere"], "checkpoint nowhere is neither a folder"),
        (["--device", "cuda:99"], "device cuda:99 cannot be used here"),
        (["--memory", "0.01"], "--memory 0.01 is less than the program itself takes"),
    ],
)
def test_a_wrong_flag_is_one_sentence(capsys, monkeypatch, flags, words):
    monkeypatch.setattr(os, "environ", os.environ.copy())
    assert app.main(flags) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence.startswith("app.py: error: ") and words in sentence


def test_a_port_that_is_taken_is_one_sentence(capsys, monkeypatch):
    monkeypatch.setattr(os, "environ", os.environ.copy())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert app.main(["--checkpoint", "u2net", "--port", str(port)]) == 2
    assert f"port {port} of 127.0.0.1 cannot be used: give another --port" in capsys.readouterr().err


def test_help_names_every_flag(capsys):
    assert app.main(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(f"  --{name} " in said for name in (*app.SHARED, *(field.name for field in fields(app.Served))))
    assert "largest photograph in megapixels" in said


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "127.0.0.1", "localhost", "::1"])
def test_the_page_is_for_this_machine_unless_told(capsys, host):
    assert app.Served().host == "127.0.0.1"
    assert app.main(["--host", host, "--checkpoint", "nowhere"]) == 2
    warning = f"warning: everybody who reaches {host} can use the page: give --auth"
    assert (warning in capsys.readouterr().err) == (host not in ("127.0.0.1", "localhost", "::1"))
    assert app.main(["--host", host, "--auth", "a:b", "--checkpoint", "nowhere"]) == 2
    assert "warning" not in capsys.readouterr().err


def test_the_environment_may_name_the_address_and_is_warned_of_like_a_flag():
    code = "import os; os.environ['GRADIO_SERVER_NAME'] = '0.0.0.0'; import app; app.main(['--checkpoint', 'nowhere'])"
    assert "everybody who reaches 0.0.0.0 can use the page" in fresh(code).stderr


def test_a_proxy_of_the_environment_is_not_asked_for_the_page(tmp_path, monkeypatch):
    """Companies set one, which knows nothing of this machine's own addresses."""
    monkeypatch.setattr(os, "environ", os.environ.copy())
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "example.org")
    tiny_pipeline().save_pretrained(tmp_path / "checkpoint")
    with serving(tmp_path / "visitors", str(tmp_path / "checkpoint")) as page:
        assert httpx.get(page.local_url, trust_env=False).status_code == 200
        assert os.environ["no_proxy"].startswith("example.org,")
