"""The order of the house: which room may import which."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = ("models", "data", "evaluation", "training", "tools")
ALLOWED = {"models": {"models"}, "data": {"data"}, "evaluation": {"evaluation"}, "tools": {"tools", "data"}}
ALLOWED["training"] = {"training", "models", "evaluation"}
MODELS_ORDER = [
    {"settings", "schedules", "diffusion", "tiling", "weights", "recompute"},
    {"unet", "u2net", "untrained", "spandrel_predictor"},
    {"sampling", "objective"},
    {"pipeline"},
    {"checkpoints"},
    {"lightning_module"},
]


def imports(path):
    """Modules a file imports from the house, and whether it imports lightning."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_rooms_import_in_one_direction():
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            rooms = {name.split(".")[0] for name in imports(path)} & set(ROOMS)
            assert rooms <= ALLOWED[room], f"{path.relative_to(ROOT)} imports {rooms - ALLOWED[room]}"


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
    for path in [*ROOT.glob("*.py"), *(p for room in ROOMS for p in (ROOT / room).rglob("*.py"))]:
        uses = any(name.split(".")[0] in ("lightning", "pytorch_lightning") for name in imports(path))
        assert not uses or path in may, f"{path.relative_to(ROOT)} imports lightning"
