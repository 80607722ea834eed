"""The project's scripts in processes of their own, forked from one that has imported all and computed nothing."""

import atexit
import gc
import multiprocessing
import os
import random
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

gc.disable()  # while all is imported; tests/conftest.py and `_run` enable it
torch.set_num_threads(1)  # its threads do not survive a fork, so the process that is forked must start none

# What a run imports late.
import diffusers.schedulers  # noqa: E402, F401
import kornia.augmentation  # noqa: E402, F401
import lpips  # noqa: E402, F401
from lightning.pytorch.utilities.rank_zero import rank_zero_only  # noqa: E402

import deblur.data.datamodule  # noqa: E402
import deblur.evaluation.run  # noqa: E402, F401
import evaluate  # noqa: E402, F401
import sample  # noqa: E402, F401
import train  # noqa: E402, F401

ROOT = Path(__file__).parents[1]
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.processes", "tests.training.test_resume"])
os.environ["PYTHONPATH"] = str(ROOT)  # that process does not get this one's sys.path
TIMEOUT = 300  # seconds


class Command:
    """A program of the project, started with its arguments in a process and a process group of its own.

    Args:
        script: sample.py, evaluate.py or train.py; or a module, as python -m takes it; or -c, and the first of the
            arguments is Python.
        arguments: of its command line.
        environment: what is set beside this process's own environment.
        fatal: (name in os, n, seconds): killed so long after its n-th call; a fourth value is another signal for it.
    """

    def __init__(self, script: str, arguments, environment: dict | None = None, fatal: tuple | None = None):
        self._place = TemporaryDirectory()
        self.said, environment = Path(self._place.name), dict(os.environ) | (environment or {})
        given = script, list(map(str, arguments)), os.getcwd(), environment, self.said, fatal
        self.process = CONTEXT.Process(target=_run, args=given)
        self.process.start()
        self.pid = self.process.pid

    def poll(self) -> int | None:
        return self.process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout: float = TIMEOUT) -> subprocess.CompletedProcess:
        """What it said, and its exit code, or the negative signal that ended it; killed where it takes too long."""
        self.process.join(timeout)
        if self.process.exitcode is None:
            os.killpg(self.pid, signal.SIGKILL)
            self.process.join()
            raise subprocess.TimeoutExpired(str(self.said), timeout)
        out, err = ((self.said / name).read_text() for name in ("out", "err"))
        return subprocess.CompletedProcess([], self.process.exitcode, out, err)


def run(script: str, arguments, environment: dict | None = None, fatal: tuple | None = None):
    """What a `Command` says, and its exit code."""
    return Command(script, arguments, environment, fatal).wait()


def torchrun(script: str, arguments, environment: dict | None = None, count: int = 2):
    """What `count` processes of a script end with that are started together, as torchrun starts them."""
    port = free_port()
    shared = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "TORCHELASTIC_RUN_ID": "test"}
    shared |= {"GROUP_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    shared |= environment or {}
    own = ({"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count))
    started = [Command(script, arguments, shared | ranks) for ranks in own]
    return [command.wait() for command in started]


def free_port() -> int:
    """A port where nothing listens, below those that the system gives to whoever asks for any."""
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise OSError("all ports that were tried are taken")


def until(condition: Callable[[], bool], command: Command) -> None:
    """Wait for a condition that the command brings about while it runs."""
    end = time.monotonic() + TIMEOUT
    while not condition():
        assert command.poll() is None
        assert time.monotonic() < end
        time.sleep(0.01)


def _run(script: str, arguments: list[str], folder: str, environment: dict, said: Path, fatal: tuple | None) -> None:
    for descriptor, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(said / name, os.O_WRONLY | os.O_CREAT), descriptor)
    gc.freeze()  # what was imported stays
    gc.enable()
    multiprocessing.set_start_method("fork", force=True)  # as in a process of its own
    # Forked, torch makes its pool of threads anew at the next call, and not safely where several threads call first.
    torch.set_num_threads(1)
    os.setsid()  # a process group of its own, with its loader's workers
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    rank_zero_only.rank = int(os.environ.get("RANK", 0))  # as Lightning finds it when it is imported
    if fatal is not None:
        _kill_at(*fatal)
    sys.argv = [script, *arguments]
    try:
        if script == "-c":
            sys.argv = arguments
            exec(arguments[0], {"__name__": "__main__"})
        elif script.endswith(".py"):
            runpy.run_path(str(ROOT / script), run_name="__main__")
        else:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()  # as at the end of a process of its own: Weights & Biases writes until then
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


def _kill_at(name: str, left: int, seconds: float, number: int = signal.SIGKILL) -> None:
    original = getattr(os, name)

    def counted(*args):
        nonlocal left
        left -= 1
        if left == 0 and seconds:
            threading.Timer(seconds, os.kill, (os.getpid(), number)).start()
        elif left == 0:
            os.kill(os.getpid(), number)
        return original(*args)

    setattr(os, name, counted)
