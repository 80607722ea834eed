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


@pytest.mark.xdist_group("made")
def test_made(number):
    assert code.made() == number


def test_number(number):
    assert number == 2
"""


def program(folder):
    for name, text in {
        "pkg/code.py": PROGRAM,
        "start.py": "print(1 + 1)\n",
        "benchmarks/speed.py": PROGRAM,
        "tests/__init__.py": "",
        "tests/test_code.py": TEST,
        "tests/test_made.py": MADE,
        "pytest.ini": "[pytest]\naddopts = --dist loadgroup\n",
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
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
    file.write_text("def a(b):\n    return b is None or b is not a or b == 1 or b > -2 and not b != 3 or b() + 4 * b\n")
    for places in mutation.changes(file).values():
        for name, occurrence in places:
            assert mutation.mutate_code(file.read_text(), mutation.get_operator(name)(), occurrence), name


def test_a_mutant_is_tried_against_the_tests_that_ran_its_lines(tmp_path):
    root = program(tmp_path)
    assert mutation.run(root, ["tests", *mutation.RECORDING]) == mutation.PASSED
    for line, tests in {
        8: ["tests/test_code.py::test_larger"],
        9: ["tests/test_code.py::test_larger"],  # a statement's second line
        12: ["tests/test_made.py", "tests/test_made.py::test_made"],  # run by a fixture, and in a group
        1: ["tests/test_code.py::test_larger", "tests/test_made.py", "tests/test_made.py::test_made"],  # run on import
    }.items():
        assert mutation.running(mutation.Mutant("pkg/code.py", line, ""), root) == tests, line
    assert mutation.running(mutation.Mutant("start.py", 1, ""), root) == []


def test_a_mutant_is_noticed_where_a_test_fails_and_leaves_the_file_as_it_was(tmp_path):
    root = program(tmp_path)
    mutation.run(root, ["tests", *mutation.RECORDING])
    for before, after, line in [("a > b", "a < b", 8), ("return START", "return START + 1", 12)]:
        assert mutation.tried(root, mutation.Mutant("pkg/code.py", line, PROGRAM.replace(before, after))), after
    missed = mutation.Mutant("pkg/code.py", 8, PROGRAM.replace("a > b", "a > b + 0"))
    assert not mutation.tried(root, missed)
    assert (root / "pkg/code.py").read_text() == PROGRAM
