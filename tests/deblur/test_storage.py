"""Files that are whole or not there, folders that one process uses, and progress bars: real files, real processes."""

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest

from deblur.revision import commit
from deblur.seeds import noise_seed, seed_of
from deblur.storage import FolderInUse, remove_parts, replacing, sole_user
from tests.conftest import ROOT, fresh

HOLD = "from deblur.storage import sole_user; from pathlib import Path; import os, sys\n"
HOLD += "with sole_user(Path(sys.argv[1])):\n    {}print('held', flush=True); sys.stdin.read()"


def holder(folder, before=""):
    """A process that holds the folder until its input ends."""
    command = [sys.executable, "-c", HOLD.format(before), str(folder)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    return process


@pytest.mark.parametrize("folder", [False, True])
def test_what_is_written_is_whole_or_not_there(tmp_path, folder):
    def write(part, text):
        if folder:
            part.mkdir()
        (part / "inside" if folder else part).write_text(text)

    path = tmp_path / "new.d"
    with pytest.raises(ValueError, match="stop"), replacing(path) as part:
        write(part, "half")
        raise ValueError("stop")
    assert not list(tmp_path.iterdir())
    with replacing(path) as part:
        write(part, "whole")
        assert part.suffix == path.suffix
        assert not path.exists()
    assert list(tmp_path.iterdir()) == [path]
    assert (path / "inside" if folder else path).read_text() == "whole"
    if folder:  # what is there is not thrown away
        with pytest.raises(OSError), replacing(path) as part:
            write(part, "other")
        assert (path / "inside").read_text() == "whole"


@pytest.mark.parametrize("name", ["x" * 238 + ".png", "x" * 251 + ".png", "ü" * 125 + ".jpeg", "x." + "y" * 253])
def test_a_name_as_long_as_the_file_system_allows_is_written(tmp_path, name):
    with replacing(tmp_path / name) as part:
        part.write_text("whole")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_what_killed_processes_left_is_removed(tmp_path):
    (tmp_path / ".last.123.part.ckpt").write_text("half")
    (tmp_path / ".checkpoint.123.part").mkdir()
    (tmp_path / "last.ckpt").write_text("whole")
    remove_parts(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["last.ckpt"]


def test_one_process_at_a_time_uses_a_folder_and_it_is_free_when_that_one_is_killed(tmp_path):
    folder = tmp_path / "runs" / "demo"
    first = holder(folder)
    with pytest.raises(FolderInUse, match=rf"another run \(pid {first.pid}\) uses {folder}"), sole_user(folder):
        pass
    first.send_signal(signal.SIGKILL)
    first.wait(300)
    with sole_user(folder):
        assert (folder / ".lock.pid").read_text().strip() == str(os.getpid())
    with sole_user(folder):
        pass


def test_a_forked_process_does_not_hold_the_folder_of_one_that_was_killed(tmp_path):
    """As the workers of a data loader, which outlive the process that read with them."""
    fork = (
        "import time; r, w = os.pipe(); os.fork() or (os.write(w, b'1'), time.sleep(30), os._exit(0)); os.read(r, 1); "
    )
    first = holder(tmp_path, fork)  # says that it holds the folder once the other process runs
    first.send_signal(signal.SIGKILL)
    first.wait(300)
    with sole_user(tmp_path):
        pass


def test_seeds_of_old_runs_stay():
    assert seed_of(0, "a") == 0xA426D59F380A083
    assert all(0 <= seed_of(0, i) < 2**63 for i in range(100))
    assert noise_seed(0, 0, "a") == noise_seed("0/0/a") == 5280419910030576297
    assert noise_seed("\udce9") != noise_seed("\udcea")


def test_a_commit_is_named_and_says_what_differs(tmp_path):
    copy = tmp_path / "copy"
    subprocess.run(["git", "init", "-q", copy], check=True, timeout=300)
    (copy / "deblur").mkdir()
    for name in ("__init__.py", "revision.py"):
        (copy / "deblur" / name).write_bytes((ROOT / "deblur" / name).read_bytes())
    read = [sys.executable, "-c", "from deblur.revision import commit; print(commit(), commit('deblur'))"]

    def said():
        return subprocess.run(read, cwd=copy, capture_output=True, text=True, check=True, timeout=300).stdout.split()

    assert said() == ["None", "None"]  # no commit yet
    (copy / "page.md").write_text("a")
    git = ["git", "-C", copy, "-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run([*git, "add", "."], check=True, timeout=300)
    subprocess.run([*git, "commit", "-qm", "a"], check=True, timeout=300)
    head = subprocess.run(
        [*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True, timeout=300
    ).stdout.strip()
    assert said() == [head, head]
    (copy / "page.md").write_text("b")
    assert said() == [f"{head}-dirty", head]
    subprocess.run([*git, "add", "."], check=True, timeout=300)
    assert said() == [f"{head}-dirty", head], "what is staged differs, too"
    assert commit() is None or len(commit().removesuffix("-dirty")) == 40
    installed = copy / "environment" / "deblur"
    installed.parent.mkdir()
    (copy / "deblur").rename(installed)
    inside = subprocess.run(read, cwd=installed.parent, capture_output=True, text=True, check=True, timeout=300)
    assert inside.stdout.split() == ["None", "None"], "the project around an installed package is not this one"


CODE = """
import sys, time
from deblur import progress
progress.SECONDS_BETWEEN_LINES = 0.4
with progress.ProgressBar(total=150, desc="steps") as bar:
    for k in range(150):
        time.sleep(0.01)
        bar.update(1)
        if k % 10 == 0:
            bar.write(f"said {k}", sys.stderr)
"""


def test_without_a_terminal_a_bar_prints_few_whole_lines():
    start, done = time.monotonic(), fresh(CODE)
    seconds = time.monotonic() - start
    bars = [line for line in done.stderr.splitlines() if not line.startswith("said ")]
    assert done.returncode == 0
    assert done.stderr.count("said ") == 15
    assert "\r" not in done.stderr
    assert 1 <= len(bars) <= seconds / 0.4
    assert all(line.startswith("steps: ") for line in bars)


def test_on_a_terminal_a_bar_is_drawn_in_place():
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    process = subprocess.Popen([sys.executable, "-c", CODE], cwd=ROOT, stderr=theirs)
    os.close(theirs)
    seen = b""
    try:
        while block := os.read(ours, 4096):
            seen += block
    except OSError:  # the end of a terminal
        pass
    assert process.wait() == 0
    assert seen.count(b"\rsteps: ") > 8
    assert b"100%" in seen
