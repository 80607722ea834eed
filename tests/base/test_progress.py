"""Progress bars with and without a terminal, in real processes."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import time

from tests.conftest import ROOT

CODE = """
import sys, time
from base import progress
progress.SECONDS = 0.4
with progress.ProgressBar(total=150, desc="steps") as bar:
    for k in range(150):
        time.sleep(0.01)
        bar.update(1)
        if k % 10 == 0:
            bar.write(f"said {k}", sys.stderr)
"""


def test_without_a_terminal_a_bar_prints_few_whole_lines():
    command, start = [sys.executable, "-c", CODE], time.monotonic()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
    seconds = time.monotonic() - start
    bars = [line for line in done.stderr.splitlines() if not line.startswith("said ")]
    assert done.stderr.count("said ") == 15 and "\r" not in done.stderr
    assert 1 <= len(bars) <= seconds / 0.4 and all(line.startswith("steps: ") for line in bars)


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
    assert process.wait() == 0 and seen.count(b"\rsteps: ") > 8 and b"100%" in seen
