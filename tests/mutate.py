"""Put the small faults of tests/faults.py into a copy of the program, one at a time: do the tests notice?

python -m tests.mutate
python -m tests.mutate --only schedules --only "best-psnr"
python -m tests.mutate --output docs/faults.md
python -m tests.mutate --list

Each fault is tried against the tests that should notice it. First these tests run without any fault, since a test that
fails anyway notices nothing. The exit code is 1 where a fault survived, and 2 where something is wrong with the list.
"""

import argparse
import datetime
import importlib
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import fill

import pytest

from base.files import replacing
from base.revision import commit, versions
from tests.faults import FAULTS, Fault

ROOT = Path(__file__).parents[1]
LIBRARIES = ["torch", "torchvision", "lightning", "diffusers", "jsonargparse", "kornia", "pandas", "scipy.stats"]
LIMIT = 900  # seconds for the tests of one fault; only one that hangs takes so long
PYTEST = 100  # added to pytest's exit codes: Python's own for an error is 1, too
NOTICED, MISSED = PYTEST + pytest.ExitCode.TESTS_FAILED, PYTEST + pytest.ExitCode.OK
TIMED_OUT = 99


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", help="faults whose file or description holds this; may be repeated")
    parser.add_argument("--output", type=Path, help="a page that lists the faults and what became of them")
    parser.add_argument("--list", action="store_true", help="print the faults and stop")
    options = parser.parse_args(args)
    faults = [fault for fault in FAULTS if chosen(fault, options.only)]
    try:
        for fault in faults:
            changed(fault)
        if not faults:
            raise ValueError(f"no fault is about {' or '.join(options.only)}: --list shows all")
        if options.list:
            print("\n".join(f"{fault.file}: {fault.says} ({' '.join(fault.tests)})" for fault in faults))
            return 0
        tried = verdicts(faults)
        if options.output:
            with replacing(options.output) as part:
                part.write_text(page(tried), encoding="utf-8")
        return 1 if "survived" in tried.values() else 0
    except ValueError as error:
        print(f"tests.mutate: error: {error}", file=sys.stderr)
        return 2


def chosen(fault: Fault, only: Sequence[str] | None) -> bool:
    """Whether a fault is among those that were asked for."""
    return not only or any(word in fault.file or word in fault.says for word in only)


def changed(fault: Fault, root: Path = ROOT) -> str:
    """The faulty text of a fault's file; ValueError where its old text does not stand there exactly once."""
    text = (root / fault.file).read_text(encoding="utf-8")
    if text.count(fault.old) != 1:
        raise ValueError(
            f"{fault.file} holds {fault.old!r} {text.count(fault.old)} times and not once,"
            f" so the fault {fault.says!r} is out of date: change it in tests/faults.py"
        )
    return text.replace(fault.old, fault.new)


def verdicts(faults: Sequence[Fault]) -> dict[Fault, str]:
    """Try the faults, print what became of each, and return it: noticed, survived or timed out.

    Raises:
        ValueError: a test fails without any fault.
    """
    tried, start = {}, time.perf_counter()
    with TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        copy_program(copy)
        tests = sorted({test for fault in faults for test in fault.tests})
        for some in ([test for test in tests if "::" not in test], [test for test in tests if "::" in test]):
            if some and run(copy, some, LIMIT * len(some), shown=True)[0] != MISSED:
                raise ValueError("the tests fail, or one is missing, without any fault: mend that first (see above)")
        for fault in faults:
            with faulty(fault, copy):
                code, seconds = run(copy, fault.tests, LIMIT)
            if code not in (NOTICED, MISSED, TIMED_OUT):
                raise ValueError(f"the tests ended with {code} at the fault {fault.says!r}, which is no verdict")
            tried[fault] = {NOTICED: "noticed", MISSED: "survived", TIMED_OUT: "timed out"}[code]
            print(f"{tried[fault]:9} {seconds:5.0f} s  {fault.file}: {fault.says}", flush=True)
    counts = Counter(tried.values())
    print(
        f"{counts['survived']} of {len(faults)} faults survived, {counts['timed out']} made the tests hang,"
        f" in {(time.perf_counter() - start) / 60:.0f} minutes"
    )
    return tried


def page(tried: dict[Fault, str]) -> str:
    """What became of the faults, as Markdown: those that no test noticed first."""
    counts = Counter(tried.values())
    files = Counter(fault.file.partition("/")[0] for fault in tried)
    places = ", ".join(f"{name} ({count})" for name, count in files.items())
    made = f"{datetime.date.today()}, commit {commit('.')}, torch {versions('torch')['torch']}"
    lines = [
        "# Faults that the tests must notice",
        "",
        fill(
            "`make mutate` puts small faults into a copy of the program, one at a time, and runs the tests that should "
            f"notice them. Of {len(tried)} faults {counts['noticed']} were noticed, {counts['survived']} survived and "
            f"{counts['timed out']} made the tests hang ({made}). They lie in {places}. At the first run, before the "
            "tests were made for it, 28 of 65 had survived.",
            120,
            break_on_hyphens=False,
        ),
        "",
        "| file | fault | tests | |",
        "|---|---|---|---|",
    ]
    for fault, verdict in sorted(tried.items(), key=lambda item: item[1] == "noticed"):
        lines.append(f"| {fault.file} | {fault.says} | {', '.join(fault.tests)} | {verdict} |")
    return "\n".join(lines) + "\n"


def copy_program(folder: Path) -> None:
    """Copy the working tree, without what git ignores."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, done.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)


@contextmanager
def faulty(fault: Fault, root: Path) -> Iterator[None]:
    """A program with a fault, inside the block."""
    file = root / fault.file
    right = file.read_text(encoding="utf-8")
    file.write_text(changed(fault, root), encoding="utf-8")
    try:
        yield
    finally:
        file.write_text(right, encoding="utf-8")


def run(root: Path, tests: Sequence[str], limit: float, shown: bool = False) -> tuple[int, float]:
    """NOTICED, MISSED, TIMED_OUT or what else some tests of the program at `root` end with, and their seconds.

    They run in a process of their own, forked from one that has loaded the libraries.
    """
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(LIBRARIES)
    start = time.perf_counter()
    process = forks.Process(target=_run_tests, args=(str(root), list(tests), shown))
    process.start()
    process.join(limit)
    code = process.exitcode
    if code is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
        code = TIMED_OUT
    return code, time.perf_counter() - start


def _run_tests(root: str, tests: list[str], shown: bool) -> None:
    os.setsid()  # what the tests start ends with them
    os.chdir(root)
    sys.dont_write_bytecode = True  # two faults of one size within a second would have one cache
    os.environ |= {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    for name in [name for name in sys.modules if name.partition(".")[0] in ("base", "tests")]:
        del sys.modules[name]  # of the repository, not of the copy
    sys.path[:] = [root, *(path for path in sys.path if path and Path(path).resolve() != ROOT)]
    importlib.invalidate_caches()
    if not shown:
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
    slow = ["-m", ""] if all("::" in test for test in tests) else []  # a test that is named runs even if it is slow
    options = ["-x", "-n", "0", "-p", "no:cacheprovider", *slow]
    sys.exit(PYTEST + pytest.main([*options, *(f"tests/{test}" for test in tests)]))


if __name__ == "__main__":
    sys.exit(main())
