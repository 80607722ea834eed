"""Which package may import which, and how the project writes."""

import ast
import re
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import hubconf
from tests.conftest import fresh

ROOT = Path(__file__).parents[1]
PACKAGES = ("deblur", "models", "data", "evaluation", "training", "restoration", "tools")
ALLOWED = {"models": set(), "deblur": {"models"}, "data": set(), "evaluation": {"models", "data"}}
ALLOWED["training"] = {"models", "data", "evaluation"}
ALLOWED["restoration"] = {"models", "data", "evaluation"}
ALLOWED["tools"] = {"models", "data", "evaluation", "training", "restoration"}
# An import that only a function makes, against the layers: files as images.
LATE = {ROOT / "deblur" / "image_processor.py": "deblur.data.files.decoding"}
# Modules that other modules import only where something optional is asked for.
OPTIONAL = {ROOT / "deblur" / "onnx" / "checks.py", ROOT / "deblur" / "onnx" / "quantise.py"}
OPTIONAL |= {ROOT / "tools" / "batch" / "run.py"}
INDENTED = 40  # imports that do not stand at the top of their module
PYTHON = [*ROOT.glob("*.py"), *(path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))]
PYTHON = [path for path in PYTHON if not path.is_symlink()]


@cache
def parsed(path):
    return ast.parse(path.read_text())


@cache
def imports(path):
    """Modules that a file imports, also in its functions or for types alone, without its exception in LATE."""
    names = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    late = LATE.get(path, " ")
    return {name for name in names if name != late and not name.startswith(f"{late}.")}


def packages_of(path):
    """Packages of this program that a file imports, by the names of their folders."""
    names = {name.split(".")[1] for name in imports(path) if name.startswith("deblur.")}
    return names & set(PACKAGES)


def test_packages_import_in_one_direction():
    for package in PACKAGES:
        for path in (path for path in PYTHON if path.is_relative_to(ROOT / package)):
            wrong = packages_of(path) - ALLOWED[package] - {package}
            assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"


def test_no_module_imports_itself_by_way_of_others():
    graph = {}
    for path in PYTHON:
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts if parts[0] == "deblur" else ("deblur", *parts)).removesuffix(".__init__")
        graph[name] = imports(path)
    graph = {name: (imported & graph.keys()) - {name} for name, imported in graph.items()}
    with pytest.raises(CycleError):
        TopologicalSorter(graph | {"deblur.settings": {"deblur.pipeline"}}).prepare()
    TopologicalSorter(graph).prepare()


def test_every_import_of_this_program_begins_with_deblur():
    for path in [*PYTHON, *(ROOT / "tests").rglob("*.py")]:
        wrong = {name for name in imports(path) if name.split(".")[0] in set(PACKAGES) - {"deblur"}}
        assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"


def test_models_know_nothing_of_the_program_around_them():
    """Nothing of checkpoints, files, memory or flags: tensors alone."""
    for path in sorted((ROOT / "models").rglob("*.py")):
        ours = {name for name in imports(path) if name.startswith("deblur.") and not name.startswith("deblur.models")}
        assert not ours, f"{path.relative_to(ROOT)} imports {ours}"


def test_only_training_imports_lightning_and_evaluation_its_processes():
    may = {ROOT / "data" / "datamodule.py"}
    may |= set((ROOT / "training").glob("*.py")) | set((ROOT / "tools" / "benchmarks").glob("*.py"))
    evaluation = ROOT / "evaluation" / "run.py"
    fabric = {"lightning.fabric", "lightning.fabric.Fabric"}
    assert {name for name in imports(evaluation) if name.startswith("lightning")} <= fabric
    for path in PYTHON:
        uses = any(name.split(".")[0] in ("lightning", "pytorch_lightning") for name in imports(path))
        assert not uses or path in may | {evaluation}, f"{path.relative_to(ROOT)} imports lightning"


def test_only_the_page_imports_gradio():
    for path in PYTHON:
        uses = any(name.split(".")[0] == "gradio" for name in imports(path))
        assert not uses or path.parent.name == "web", f"{path.relative_to(ROOT)} imports gradio"


def test_imports_stand_at_the_top():
    """Each command.py parses, then imports its sibling, which imports everything at its top; few others are late."""
    late = []
    for path in PYTHON:
        tree = parsed(path)
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
        late += [f"{path.relative_to(ROOT)}: {node.lineno}" for node in nodes if node not in tree.body]
    assert len(late) <= INDENTED, late
    for path, name in LATE.items():
        at_the_top = {node.module for node in parsed(path).body if isinstance(node, ast.ImportFrom)}
        assert name not in at_the_top, path.relative_to(ROOT)


@pytest.mark.parametrize("module", ["evaluate", "hub", "settings", "restoration.options"])
def test_options_settings_and_the_hub_are_free_of_torch(module):
    done = fresh(f"import sys, deblur.{module}; print('torch' in sys.modules)")
    assert done.stdout == "False\n", done.stderr


def test_models_import_nothing_of_the_compiler_s_inside():
    for path in (ROOT / "models").rglob("*.py"):
        private = {name for name in imports(path) if name.startswith(("torch._inductor", "torch._dynamo"))}
        assert not private, f"{path.relative_to(ROOT)} imports {private}"


def canonical(distribution):
    return distribution.lower().replace("_", "-")


def required(name):
    """The distributions that a requirement file names."""
    lines = (ROOT / name).read_text().splitlines()
    return {canonical(re.match(r"[\w-]+", line)[0]) for line in lines if not line.startswith("#")}


def test_each_package_is_required_for_one_purpose():
    """`pip install .` installs requirements.txt, so nothing there is for tests alone."""
    names = [name for part in ("", "-dev", "-extra") for name in required(f"requirements{part}.txt")]
    assert len(names) == len(set(names))


def test_what_the_program_imports_is_required():
    always = required("requirements.txt")
    optional = always | required("requirements-extra.txt")
    distributions = {"cv2": ["opencv-python-headless"]} | packages_distributions()  # what is optional may be missing
    for path in PYTHON:
        tree = parsed(path)
        at_import = {id(node) for node in tree.body}
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            for name in {name.split(".")[0] for name in names} - set(sys.stdlib_module_names):
                if (ROOT / name).exists() or (ROOT / f"{name}.py").exists():
                    continue
                installs = {canonical(each) for each in distributions.get(name, [name])}
                declared = always if id(node) in at_import and path not in OPTIONAL else optional
                assert installs & declared, f"{path.relative_to(ROOT)} imports {name}, which no requirement file names"


def test_torch_hub_asks_for_what_a_pipeline_imports():
    files = "*(module.__file__ for name, module in sys.modules.items() if name.startswith('deblur'))"
    done = fresh(f"import sys, deblur.pipeline; print({files})")
    top = [node for file in done.stdout.split() for node in parsed(Path(file).resolve()).body]
    names = {alias.name for node in top if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in top if isinstance(node, ast.ImportFrom)}
    assert len(names) > 50, done.stderr
    lacking = {name.split(".")[0] for name in names} - set(sys.stdlib_module_names) - {"deblur", *hubconf.dependencies}
    assert not lacking


def test_the_constraints_are_exact_versions():
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        assert line.startswith("#") or re.match(r"[\w.-]+==[\w.+]+(; |$)", line), line


def test_images_are_opened_in_one_place_by_an_allow_list():
    """So that every program bounds what a file may hold; what opens the program's own images names their format."""
    readers = {"open_heif", "TiffFile", "imread", "png_decode", "avif_decode", "jpeg_decode", "tiff_decode"}
    for path in PYTHON:
        for node in (node for node in ast.walk(parsed(path)) if isinstance(node, ast.Call)):
            place, name = f"{path.relative_to(ROOT)}: {node.lineno}", ast.unparse(node.func)
            if name.endswith("Image.open"):
                assert {"formats"} <= {word.arg for word in node.keywords}, place
                own = {"evaluation/report.py", "training/callbacks.py"}
                assert str(path.relative_to(ROOT)) in {"data/files/formats.py", *own}, place
            assert name.rpartition(".")[2] not in readers or path.is_relative_to(ROOT / "data" / "files"), place


def test_photographs_are_called_images():
    for path in [*PYTHON, *(ROOT / "tests").rglob("*.py")]:
        assert not re.search("pic[t]ure", path.read_text(), re.IGNORECASE), path.relative_to(ROOT)


def test_prose_stays_within_120_columns():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    configs = [path for folder in ("configs", "pretrained") for path in (ROOT / folder).rglob("*.yaml")]
    for path in pages + configs:
        prose = re.sub(r"^( *)```.*?^\1```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
        for line in prose.splitlines():
            free = line.lstrip().startswith("|") or "://" in line  # tables and addresses
            assert free or len(line) <= 120, f"{path.relative_to(ROOT)}: {line}"


def test_the_help_of_a_module_names_a_command_that_runs_it():
    found = 0
    for path in (path for path in PYTHON if path.is_relative_to(ROOT / "tools")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".command")
        for script in re.findall(r'\b(?:call\(\w+, \w+, |make_parser\()"(.+?)"', path.read_text()):
            assert script == f"-m {module}"
            found += 1
    assert found > 8
