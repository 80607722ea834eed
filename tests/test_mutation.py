"""The mutants of make mutate: where they are drawn, and which tests are run against them."""

from tests import mutation
from tests.conftest import ROOT

PROGRAM = "def larger(a, b):\n    return a > b and True\n"
TEST = "from pkg import code\n\n\ndef test_larger():\n    assert code.larger(2, 1) and not code.larger(1, 2)\n"


def program(folder):
    for name, text in {
        "pkg/code.py": PROGRAM,
        "start.py": "print(1 + 1)\n",
        "benchmarks/speed.py": PROGRAM,
        "tests/__init__.py": "",
        "tests/test_code.py": TEST,
        "tests/helper.py": "import pkg.code\n",
        "tests/test_helped.py": "from tests.helper import pkg\n",
        "tests/test_start.py": 'WORDS = ["python", "start.py"]\n',
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


def test_the_tests_of_a_file_import_it_through_helpers_too_or_start_it(tmp_path):
    root = program(tmp_path)
    assert mutation.importing("pkg/code.py", root) == ["tests/test_code.py", "tests/test_helped.py"]
    assert mutation.importing("start.py", root) == ["tests/test_start.py"]
    assert "tests/tools/test_doctor.py" in mutation.importing("tools/doctor.py", ROOT)


def test_a_mutant_is_noticed_where_a_test_fails_and_leaves_the_file_as_it_was(tmp_path):
    root = program(tmp_path)
    noticed = mutation.Mutant("pkg/code.py", PROGRAM.replace(">", "<"))
    missed = mutation.Mutant("pkg/code.py", PROGRAM.replace("a > b", "a > b + 0"))
    assert mutation.tried(root, noticed) and not mutation.tried(root, missed)
    assert (root / "pkg/code.py").read_text() == PROGRAM
