"""Which package may import which, and how the project writes."""

import ast
import re
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("base", "models", "data", "evaluation", "training", "tools", "web", "deployment", "restoration", "batch")
ALLOWED = {name: {"base", name} for name in ("models", "data", "evaluation")} | {"base": {"base"}}
ALLOWED["evaluation"] |= {"models"}
ALLOWED["training"] = {"base", "training", "models", "evaluation"}
ALLOWED["deployment"] = {"base", "deployment", "data", "models"}
ALLOWED["restoration"] = {"base", "restoration", "data", "models", "evaluation"}
ALLOWED["batch"] = {"base", "batch", "restoration", "data", "models"}
ALLOWED["tools"] = {"base", "tools", "data", "models"}
ALLOWED["web"] = {"base", "web", "data", "models", "restoration"}
MODELS_ORDER = [
    {"settings", "index", "schedules", "diffusion", "memory", "devices", "parts", "arrays", "optimizer"}
    | {"heads", "onnx_files", "engines", "calibration"},
    {"unet", "tiling", "onnx_network"},
    {"sampling", "samples", "losses", "u2net", "slim_unet"},
    {"pipeline", "classes"},
    {"checkpoints"},
    {"export"},
    {"lightning_module"},
]


def imports(path):
    """Modules that a file imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_packages_import_in_one_direction():
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            used = {name.split(".")[0] for name in imports(path)} & set(PACKAGES)
            assert used <= ALLOWED[package], f"{path.relative_to(ROOT)} imports {used - ALLOWED[package]}"


def test_models_are_layered():
    level = {name: i for i, names in enumerate(MODELS_ORDER) for name in names}
    files = {path.stem for path in (ROOT / "models").glob("*.py")} - {"__init__"}
    assert files == level.keys()
    for stem in files:
        used = {name.split(".")[1] for name in imports(ROOT / "models" / f"{stem}.py") if name.startswith("models.")}
        for other in used & files - {stem}:
            same_floor = level[other] == level[stem] == 0
            assert level[other] < level[stem] or same_floor, f"models/{stem}.py imports models/{other}.py"


def test_only_training_imports_lightning_and_evaluation_its_processes():
    may = {ROOT / "models" / "lightning_module.py", ROOT / "data" / "datamodule.py", ROOT / "train.py"}
    assert {name for name in imports(ROOT / "evaluate.py") if name.startswith("lightning")} <= {
        "lightning.fabric",
        "lightning.fabric.Fabric",
    }
    may.add(ROOT / "evaluate.py")
    may |= set((ROOT / "training").glob("*.py"))
    for path in [*ROOT.glob("*.py"), *(p for package in PACKAGES for p in (ROOT / package).rglob("*.py"))]:
        uses = any(name.split(".")[0] in ("lightning", "pytorch_lightning") for name in imports(path))
        assert not uses or path in may, f"{path.relative_to(ROOT)} imports lightning"


def test_only_the_page_imports_gradio():
    for path in [*ROOT.glob("*.py"), *(p for package in PACKAGES for p in (ROOT / package).rglob("*.py"))]:
        uses = any(name.split(".")[0] == "gradio" for name in imports(path))
        assert not uses or path.parent.name == "web", f"{path.relative_to(ROOT)} imports gradio"


def test_models_import_nothing_of_the_compiler_s_inside():
    for path in (ROOT / "models").glob("*.py"):
        private = {name for name in imports(path) if name.startswith(("torch._inductor", "torch._dynamo"))}
        assert not private, f"{path.relative_to(ROOT)} imports {private}"


def test_what_the_program_imports_is_required():
    def required(name):
        lines = (ROOT / name).read_text().splitlines()
        return {canonical(re.match(r"[\w-]+", line)[0]) for line in lines if not line.startswith("#")}

    def canonical(distribution):
        return distribution.lower().replace("_", "-")

    known = required("requirements.txt")
    optional = known | required("requirements-extra.txt")
    distributions = {"cv2": ["opencv-python-headless"]} | packages_distributions()  # what is optional may be missing
    for path in [*ROOT.glob("*.py"), *(p for package in PACKAGES for p in (ROOT / package).rglob("*.py"))]:
        tree = ast.parse(path.read_text())
        at_import = {id(node) for node in tree.body}
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            for name in {name.split(".")[0] for name in names} - set(sys.stdlib_module_names):
                if (ROOT / name).exists() or (ROOT / f"{name}.py").exists():
                    continue
                installs = {canonical(each) for each in distributions.get(name, [name])}
                declared = known if id(node) in at_import else optional
                assert installs & declared, f"{path.relative_to(ROOT)} imports {name}, which no requirement file names"


def test_images_are_opened_in_one_place_by_an_allow_list():
    for path in [*ROOT.glob("*.py"), *(p for package in PACKAGES for p in (ROOT / package).rglob("*.py"))]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Image.open"):
                assert {"formats"} <= {word.arg for word in node.keywords}, f"{path.relative_to(ROOT)}: {node.lineno}"


def test_photographs_are_called_images():
    folders = (ROOT / folder for folder in (*PACKAGES, "benchmarks", "tests"))
    for path in [*ROOT.glob("*.py"), *(p for folder in folders for p in folder.rglob("*.py"))]:
        assert not re.search("pic[t]ure", path.read_text(), re.IGNORECASE), path.relative_to(ROOT)


def test_prose_stays_within_120_columns():
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "configs").rglob("*.yaml")]:
        prose = re.sub(r"^( *)```.*?^\1```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
        for line in prose.splitlines():
            free = line.lstrip().startswith("|") or "://" in line  # tables and addresses
            assert free or len(line) <= 120, f"{path.relative_to(ROOT)}: {line}"
