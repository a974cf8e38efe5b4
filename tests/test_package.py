"""The shape of the package: what imports what, what is heavy, how long its functions are."""

import ast
import configparser
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
import yaml

import trl_miner

PACKAGE = Path(trl_miner.__file__).parent
ROOT = Path(__file__).parent.parent


def test_what_is_light_imports_nothing_heavy():
    """In one fresh interpreter, the lightest first: commands; a grading worker; what reads and
    draws; mathematics."""
    of_models = {"trl", "transformers"}
    stages = [
        (
            {"cli", "compare"},
            of_models | {"torch", "datasets", "accelerate", "numpy", "matplotlib"},
        ),
        ({"rewards", "grading.worker", "data.prompts"}, of_models | {"torch", "datasets"}),
        (in_folders("viewing", "runs"), of_models | {"torch"}),
        (
            in_folders("methods", "distributed") | {"evaluation.metrics"},
            of_models | {"datasets", "accelerate"},
        ),
    ]
    code = f"""if True:
        import importlib, sys
        for modules, heavy in {stages}:
            for name in sorted(modules):
                importlib.import_module("trl_miner." + name)
                if imported := heavy & set(sys.modules):
                    sys.exit(f"trl_miner.{{name}} imports {{imported}}")"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_worlds_are_loaded_when_they_are_named():
    """Neither the trainer nor the training script runs code that stands beside recipes."""
    code = """if True:
        import sys
        import trl_miner.train, trl_miner.training.run_trainer
        from trl_miner import MinerGRPOTrainer
        from trl_miner.data.worlds import WORLDS
        worlds = {"trl_miner.data.forks", "trl_miner.data.strategies"}
        assert not worlds & set(sys.modules), sys.modules.keys()
        assert WORLDS["trl_miner/forks"].NAME == "trl_miner/forks"
        assert worlds & set(sys.modules) == {"trl_miner.data.forks"}"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def in_folders(*folders):
    return {name for name in MODULES if name.split(".")[0] in folders}


def test_the_wheel_has_every_package():
    folders = {path.parent.relative_to(ROOT) for path in PACKAGE.rglob("*.py")} | {
        Path("trl_miner", "recipes")
    }
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    assert settings["options"]["packages"].split() == sorted(
        ".".join(folder.parts) for folder in folders
    )


def test_public_names_are_there():
    for name in trl_miner.__all__:
        assert getattr(trl_miner, name) is not None
    assert set(trl_miner.__all__) <= set(dir(trl_miner))
    with pytest.raises(AttributeError, match="no attribute 'MinerTrainer'.*MinerGRPOTrainer"):
        trl_miner.MinerTrainer  # noqa: B018


LARGEST_BODY = 640

# --- The direction of imports, as CONTRIBUTING.md draws it

MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    .removesuffix("__init__")
    .removesuffix("."): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


def rows_of_the_map() -> list[set[str]]:
    """The rows of CONTRIBUTING's map, top first: the names before the first gap of two spaces."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    block = re.search(r"^## The map.*?```text\n(.*?)```", text, re.DOTALL | re.MULTILINE)
    assert block, "CONTRIBUTING.md must have a section 'The map' with a block of text"
    return [set(line.split("  ")[0].split()) for line in block[1].splitlines()]


def is_for_types(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    )


def imports_of(name: str, *, types: bool) -> Iterator[str]:
    """Yield the modules of ours that a module imports, anywhere in it; with `types`, also for
    annotations."""
    package = name.split(".") if MODULES[name].name == "__init__.py" else name.split(".")[:-1]
    package = [part for part in package if part]
    nodes: list[ast.AST] = [TREES[name]]
    while nodes:
        node = nodes.pop()
        nodes += ast.iter_child_nodes(node) if types or not is_for_types(node) else node.orelse
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "trl_miner":
                    yield alias.name.removeprefix("trl_miner").removeprefix(".")
        elif isinstance(node, ast.ImportFrom):
            parts = node.module.split(".") if node.module else []
            if node.level:
                parts = [*package[: len(package) - node.level + 1], *parts]
            elif parts[:1] == ["trl_miner"]:
                parts = parts[1:]
            else:
                continue
            for alias in node.names:
                inner = ".".join([*parts, alias.name])
                yield inner if inner in MODULES else ".".join(parts)


def test_the_map_names_what_there_is():
    rows = rows_of_the_map()
    names = [name for row in rows for name in row]
    assert len(names) == len(set(names))
    assert set(names) == {name.split(".")[0] for name in MODULES if name}


def test_imports_run_down_the_map():
    """Between folders; imports inside functions count, those for annotations do not. Anyone may
    read the version."""
    depth = {name: number for number, row in enumerate(rows_of_the_map()) for name in row}
    up = set()
    for name in MODULES:
        for target in imports_of(name, types=False):
            source, aim = name.split(".")[0], target.split(".")[0]
            if name and aim and source != aim and depth[source] >= depth[aim]:
                up.add((source, aim))
    assert not up


# What the core knows of ours, beside its own folder and the methods.
CORE = {"common.errors", "common.importing", "common.redaction", "common.setting"}


def test_the_core_knows_nothing_of_runs():
    """No run folder, data, verifier, launcher, heartbeat or card: a run is attached from above."""
    known = {
        target
        for name in in_folders("trainer", "methods")
        for target in imports_of(name, types=True)
        if target.split(".")[0] not in {"trainer", "methods"}
    }
    assert known == CORE


def test_no_modules_import_each_other():
    """Not even in a longer circle, inside functions, or for annotations."""
    graph = {
        name: {target for target in imports_of(name, types=True) if target and target != name}
        for name in MODULES
        if name
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as circle:
        pytest.fail(" <- ".join(circle.args[1]))


# --- Sizes


def test_functions_stay_short():
    """In syntax nodes, which a bar cannot make denser: about 640 are 60 lines, and 70 nine."""
    nodes = {
        f"{name}.{node.name}:{node.lineno}": sum(1 for part in node.body for _ in ast.walk(part))
        for name, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert not {name: count for name, count in nodes.items() if count > LARGEST_BODY}
    assert statistics.median(nodes.values()) <= 70


def test_the_workflow_runs_stages_that_there_are():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    named = " ".join(workflow["jobs"]["stages"]["strategy"]["matrix"]["stage"]).split()
    stages = re.search(r'^stages="(.*)"', (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert stages and {*named} <= {*stages[1].split()}
