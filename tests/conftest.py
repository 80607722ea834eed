"""What several tests stand on: places, an empty cache without a network, a folder to train in, a hostile pickle."""

import gc
import logging
import os
import secrets
import shutil
import subprocess
import sys
import urllib.request
from contextlib import ExitStack, contextmanager
from inspect import signature
from pathlib import Path

import pytest
from hypothesis import settings

if "PYTEST_XDIST_WORKER" in os.environ:  # the tests share the cores; also what they start reads this
    os.environ["OMP_NUM_THREADS"] = "1"

settings.register_profile("no deadline", deadline=None)  # the tests share the cores
settings.load_profile("no deadline")

ROOT = Path(__file__).parents[1]
ASSETS = ROOT / "tests" / "assets"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


# Why a test may be skipped under --only-gpu-skips. A browser is there where .ci/run could install one.
REASONS = ("CUDA device", "this GPU has no", "no Chromium", "no Tesseract")


def pytest_addoption(parser):
    parser.addoption("--only-gpu-skips", action="store_true", help="fail where a test is skipped that needs no GPU")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    """Other examples in every run of hypothesis; the summary says by which seed."""
    if config.getoption("hypothesis_seed") is None:
        config.option.hypothesis_seed = str(secrets.randbits(32))


@pytest.hookimpl(tryfirst=True)
def pytest_collection():
    gc.disable()  # what the modules import makes a million objects that stay


def pytest_collection_finish():
    gc.freeze()  # so that no later collection looks through them: a seventh of the tests' time
    gc.enable()


def pytest_unconfigure():
    gc.unfreeze()  # nanobind would report them as leaked


def pytest_collection_modifyitems(items):
    """Groups, which one worker runs, come first: the others share the rest meanwhile."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)


def pytest_terminal_summary(terminalreporter, config):
    terminalreporter.write_line(f"examples of --hypothesis-seed={config.getoption('hypothesis_seed')}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not session.config.getoption("--only-gpu-skips"):  # none in a worker
        return
    reasons = [f"{report.nodeid}: {report.longrepr[2]}" for report in reporter.stats.get("skipped", [])]
    for reason in (reason for reason in reasons if not any(allowed in reason for allowed in REASONS)):
        reporter.write_line(f"\nskipped for another reason than a missing GPU: {reason}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def fresh(code: str, *arguments, folder: Path = ROOT) -> subprocess.CompletedProcess:
    """What a new interpreter says of Python in a folder: nothing of the project is loaded there."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


class Hostile:
    """A pickle that makes a folder when it is loaded."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


@pytest.fixture
def no_network(monkeypatch, tmp_path):
    """An empty weights cache, whose folder of files is returned, and a proxy that refuses at once."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    # urllib keeps the proxies that it found first.
    monkeypatch.setattr(urllib.request, "_opener", None)
    return tmp_path / "cache" / "hub" / "checkpoints"


def draw_photographs(folder):
    """Three small photographs, of noise, in the folder photos."""
    import torch

    from deblur.data.files import images

    generator = torch.Generator().manual_seed(0)
    for name in "abc":
        images.write(folder / "photos" / f"{name}.png", torch.rand(3, 40, 44, generator=generator))


@contextmanager
def folder_to_train_in(factory, name):
    """An empty folder with three small photographs, in which the block is: for fixtures of a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(factory.mktemp(name))
        draw_photographs(Path.cwd())
        yield Path.cwd()


@pytest.fixture
def run_folder(no_network, tmp_path, monkeypatch):
    """An empty folder with three small photographs and run.yaml, in which a test is; there is no network."""
    from tests.tiny import RUN

    if "wandb" in sys.modules:
        sys.modules["wandb"].teardown()  # its service, an earlier test's, works in that test's folder
        sys.modules["wandb"].run = None  # which a logger would go on with
    monkeypatch.chdir(tmp_path)
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    # Lightning keeps its messages from the root logger if that had no handler when it was imported.
    for name in ("lightning", "lightning.pytorch", "lightning.fabric"):
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
    draw_photographs(tmp_path)
    (tmp_path / "run.yaml").write_text(RUN)
    return tmp_path


def flags_of_train_py():
    """The flags of this program, in a folder to train in; those of the trainer are Lightning's own."""
    from deblur.models.losses import Objective, PredictorLoss, Residual
    from deblur.training.module import Optimizer, Predict, PredictAndRefine
    from deblur.training.run import Run

    parser, model = Run(None, ["--config", "run.yaml"], ExitStack()).parser, set()
    for name, argument in [*signature(Predict).parameters.items(), *signature(PredictAndRefine).parameters.items()]:
        grouped = isinstance(argument.default, Optimizer | PredictorLoss | Residual | Objective)
        model |= {f"model.{name}.{key}" for key in vars(argument.default)} if grouped else {f"model.{name}"}
    names = {action.dest for action in parser._actions if not action.dest.endswith(".help")}
    # A group such as --data takes a config file of its own.
    names -= {"help", "config", "print_shtab", "data", "trainer", "model", "ema", "scores", "guard"}
    return {name for name in names if not name.startswith("trainer.")} | model


@pytest.fixture(scope="module")
def chromium():
    """A browser, with a window of 1200 x 900."""
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser.new_context(viewport={"width": 1200, "height": 900})  # its tabs share what they fetch
        browser.close()
