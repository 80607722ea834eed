"""Put mutants into a copy of the program, one at a time, and show those that no test notices: python -m tests.mutation

The mutants are drawn by a seed from all places of the product where one of cosmic-ray's operators applies; none is
chosen by hand. Each is tried against the tests that ran its lines, also in the processes that they start.
"""

import ast
import difflib
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

import pytest
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names
from coverage import CoverageData

ROOT = Path(__file__).parents[1]
LIBRARIES = ["torch", "torchvision", "lightning", "diffusers", "jsonargparse", "kornia", "pandas", "scipy.stats"]
LIMIT = 3600  # seconds for the tests of one mutant; only one that hangs takes so long
PASSED = pytest.ExitCode.OK
RECORDING = ["--cov=.", "--cov-context=test", "--cov-report=", "--junitxml=seconds.xml"]  # what and how long tests run
# Most | join types or dicts: with another operator the file cannot be imported, which proves nothing about tests.
LEFT_OUT = re.compile("NoOp|BinaryOperator_BitOr_")

# The replacements of one operator of arithmetic (+ by -, + by *, ...) apply at the same places: one of them is asked.
OPERATORS: dict[str, list[str]] = defaultdict(list)
for _name in operator_names():
    if not LEFT_OUT.search(_name) and not get_operator(_name).arguments():
        OPERATORS[_name.rpartition("_")[0] if "Binary" in _name else _name].append(_name)


@dataclass(frozen=True)
class Mutant:
    """One changed place of one file, at a line: `text` is the whole file with the change."""

    file: str
    line: int
    text: str

    def diff(self, root: Path = ROOT) -> str:
        """The change as a unified diff."""
        before = (root / self.file).read_text(encoding="utf-8").splitlines()
        return "\n".join(difflib.unified_diff(before, self.text.splitlines(), self.file, self.file, lineterm="", n=1))


def main(count: int = 150, seed: int = 0) -> int:
    """Try so many mutants, drawn by a seed; print the survivors; the exit code is 1 if more than a tenth survived."""
    survivors = 0
    with copied() as copy:
        if run(copy, ["tests", *RECORDING]) != PASSED:
            raise SystemExit("the tests fail without any mutant: mend that first")
        for number, mutant in enumerate(draw(count, seed, copy), start=1):
            noticed = tried(copy, mutant)
            survivors += not noticed
            print(f"{number:4} {mutant.file}", "noticed" if noticed else f"survived\n{mutant.diff()}", flush=True)
    print(f"{survivors} of {count} mutants survived (seed {seed})")
    return 1 if survivors > count / 10 else 0


def draw(count: int, seed: int, root: Path = ROOT) -> list[Mutant]:
    """Draw mutants: a place uniformly, then one of the changes that are possible there."""
    places = [(file, *place) for file in product(root) for place in sorted(changes(root / file).items())]
    chosen = random.Random(seed)
    mutants = []
    for file, (start, _), possible in chosen.sample(places, count):
        name, occurrence = chosen.choice(possible)
        text = mutate_code((root / file).read_text(encoding="utf-8"), get_operator(name)(), occurrence)
        mutants.append(Mutant(file, start[0], text))
    return mutants


def product(root: Path = ROOT) -> list[str]:
    """The Python files of the product, by their paths from the root."""
    files = (file.relative_to(root).as_posix() for file in root.rglob("*.py"))
    return sorted(file for file in files if not file.startswith((".", "tests/", "benchmarks/")))


def changes(file: Path) -> dict[tuple, list[tuple[str, int]]]:
    """The places of a file where operators apply: (start, end) -> (operator's name, number of its occurrence)."""
    found = defaultdict(list)
    nodes = list(ast_nodes(get_ast(file.read_text(encoding="utf-8"))))
    for alike, operator in ((names, get_operator(names[0])()) for names in OPERATORS.values()):
        places = ((node, place) for node in nodes for place in operator.mutation_positions(node))
        for occurrence, (node, place) in enumerate(places):
            if node.type != "except_clause" or "." not in node.get_code():  # which cosmic-ray cannot replace
                found[tuple(place)] += [(name, occurrence) for name in alike]
    return found


def running(mutant: Mutant, root: Path = ROOT) -> list[str]:
    """The tests that ran a mutant's statement, or all if it runs on import; near and cheap ones come first.

    What a fixture runs counts for all tests of its module.
    """
    recorded = CoverageData(str(root / ".coverage"))
    recorded.read()
    by_line = recorded.contexts_by_lineno(str(root / mutant.file))
    contexts = {context for line in statement(mutant, root) for context in by_line.get(line, ())}
    contexts = (contexts if statement(mutant, root) else recorded.measured_contexts()) - {""}
    # By pytest-cov "test|run", and by pytest in the processes of a test "test (call)".
    found = {re.sub(r"::.*(setup|teardown)\)?$|(\|run| \(call\))$", "", context) for context in contexts}
    seconds = defaultdict(float)
    for case in ElementTree.parse(root / "seconds.xml").iter("testcase"):
        file = case.get("classname").replace(".", "/") + ".py"
        if found & {file, f"{file}::{case.get('name')}"}:
            seconds[file] += float(case.get("time"))
    own = re.sub(r"(\w+\.py)$", r"test_\1", f"tests/{mutant.file}")
    near = [own, os.path.dirname(own)]
    return sorted(found, key=lambda test: (*(it not in test for it in near), seconds[test.partition("::")[0]], test))


def statement(mutant: Mutant, root: Path = ROOT) -> range:
    """The lines of the statement that a mutant changes; of one with a body, those before it; none outside functions."""
    found, inside = range(0), False
    for node in ast.walk(ast.parse((root / mutant.file).read_text(encoding="utf-8"))):  # from the outside inwards
        if isinstance(node, ast.stmt) and node.lineno <= mutant.line <= node.end_lineno:
            end = node.body[0].lineno if hasattr(node, "body") else node.end_lineno + 1
            found = range(node.lineno, end) if inside else found
            inside = inside or (isinstance(node, ast.FunctionDef) and mutant.line >= end)
    return found


def tried(copy: Path, mutant: Mutant) -> bool:
    """Whether a test of the copy notices a mutant."""
    file = copy / mutant.file
    right = file.read_text(encoding="utf-8")
    tests = running(mutant, copy)
    file.write_text(mutant.text, encoding="utf-8")
    try:
        code = run(copy, tests) if tests else PASSED
        if code == pytest.ExitCode.USAGE_ERROR:  # a test is missing: a changed table may have changed its name
            code = run(copy, list(dict.fromkeys(test.partition("::")[0] for test in tests)))
        return code != PASSED
    finally:
        file.write_text(right, encoding="utf-8")


@contextmanager
def copied(root: Path = ROOT) -> Iterator[Path]:
    """A copy of the working tree with its history, without what git ignores; removed at the end."""
    with TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        subprocess.run(["git", "clone", "-q", "--shared", root, copy], check=True)
        names = subprocess.check_output(["git", "ls-files", "-zco", "--exclude-standard"], cwd=root, text=True)
        for name in {file.relative_to(copy).as_posix() for file in copy.rglob("*.py")} - set(names.split("\0")):
            (copy / name).unlink()
        for name in names.split("\0"):
            if (root / name).is_file():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(root / name, copy / name)
        yield copy


def run(root: Path, tests: Sequence[str]) -> int:
    """pytest's exit code for some tests of the program at `root`, in a process that has loaded the libraries."""
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(LIBRARIES)
    process = forks.Process(target=_run_tests, args=(str(root), list(tests)))
    process.start()
    process.join(LIMIT)
    if process.exitcode is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
    return process.exitcode


def _run_tests(root: str, tests: list[str]) -> None:
    os.setsid()  # what the tests start ends with them
    os.chdir(root)
    sys.dont_write_bytecode = True  # two mutants of one size within a second would have one cache
    os.environ |= {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "PYTEST_CURRENT_TEST": ""}
    if RECORDING[0] in tests:  # in the processes that tests start, too
        os.environ |= {"COVERAGE_PROCESS_START": str(ROOT / "pyproject.toml"), "COVERAGE_FILE": f"{root}/.coverage"}
    for name in [name for name in sys.modules if name.partition(".")[0] in ("base", "tests")]:
        del sys.modules[name]  # of the repository, not of the copy
    sys.path[:] = [root, *(path for path in sys.path if path and Path(path).resolve() != ROOT)]
    for descriptor in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    sys.exit(pytest.main(["-x", "-n", "0", "--dist", "no", "-p", "no:cacheprovider", *tests]))


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
