"""The mutants of make mutate: where they are drawn, and which tests are run against them."""

from tests import mutation

PROGRAM = """START = 2


def larger(a, b):
    if a is None:
        return False

    return (
        a > b
        and True)

def made(): return START
"""
TEST = "from pkg import code\n\n\ndef test_larger():\n    assert code.larger(2, 1) and not code.larger(1, 2)\n"
MADE = """import pytest
from pkg import code


@pytest.fixture(scope="module")
def number():
    return code.made()


def test_made(number):
    assert code.made() == number


def test_number(number):
    assert number == 2
"""
STARTED = "import os\nimport sys\n\n\ndef test_start():\n    os.system(f'{sys.executable} start.py')\n"


def program(folder):
    for name, text in {
        "pkg/code.py": PROGRAM,
        "start.py": "def main():\n    print(1 + 1)\n\n\nmain()\n",
        "benchmarks/speed.py": PROGRAM,
        "tests/__init__.py": "",
        "tests/pkg/test_code.py": TEST,
        "tests/test_made.py": MADE,
        "tests/test_started.py": STARTED,
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_a_seed_draws_the_same_changes_of_the_product_alone(tmp_path):
    root = program(tmp_path)
    assert mutation.product(root) == ["pkg/code.py", "start.py"]
    drawn = mutation.draw(4, 0, root)
    assert drawn == mutation.draw(4, 0, root) != mutation.draw(4, 1, root)
    for mutant in drawn:
        before, after = (line for line in mutant.diff(root).splitlines()[2:] if line[0] in "+-")
        assert before[0] == "-" and after[0] == "+" and before[1:] != after[1:]


def test_every_change_that_is_counted_can_be_made(tmp_path):
    file = tmp_path / "a.py"
    file.write_text("def a(b):\n try: return b is None or b > -2 and not b != 3 or b() + 4 * b\n except b.c: 0\n")
    for places in mutation.changes(file).values():
        for name, occurrence in places:
            assert mutation.mutate_code(file.read_text(), mutation.get_operator(name)(), occurrence), name


def test_a_mutant_is_tried_against_the_tests_that_ran_its_lines(tmp_path):
    root = program(tmp_path)
    assert mutation.run(root, ["tests", *mutation.RECORDING]) == mutation.PASSED
    for line, tests in {
        8: ["tests/pkg/test_code.py::test_larger"],
        9: ["tests/pkg/test_code.py::test_larger"],  # a statement's second line
        12: ["tests/test_made.py", "tests/test_made.py::test_made"],  # run by a fixture
    }.items():
        assert mutation.running(mutation.Mutant("pkg/code.py", line, ""), root) == tests, line
    assert mutation.running(mutation.Mutant("start.py", 2, ""), root) == ["tests/test_started.py::test_start"]
    first, *rest = mutation.running(mutation.Mutant("pkg/code.py", 1, ""), root)  # on import, and the nearest first
    assert first == "tests/pkg/test_code.py::test_larger" and len(rest) == 4


def test_a_mutant_is_noticed_where_a_test_fails_and_leaves_the_file_as_it_was(tmp_path):
    root = program(tmp_path)
    mutation.run(root, ["tests", *mutation.RECORDING])
    for before, after, line in [("a > b", "a < b", 8), ("return START", "return START + 1", 12)]:
        assert mutation.tried(root, mutation.Mutant("pkg/code.py", line, PROGRAM.replace(before, after))), after
    assert not mutation.tried(root, mutation.Mutant("pkg/code.py", 8, PROGRAM.replace("a > b", "a > b + 0")))
    assert (root / "pkg/code.py").read_text() == PROGRAM
