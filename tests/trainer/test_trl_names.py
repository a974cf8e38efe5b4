"""TRL's private names: the list is what the code uses, and a TRL without one of them is told."""

import ast
from pathlib import Path

import pytest
from trl import GRPOTrainer

from trl_miner import trainer as folder
from trl_miner.trainer import trl_names
from trl_miner.trainer.trainer import MinerGRPOTrainer

SOURCES = [*Path(folder.__file__).parent.glob("*.py")]
LISTED = {*trl_names.OVERRIDDEN, *trl_names.READ, *trl_names.OF_TRANSFORMERS}


def private(name):
    return name.startswith("_") and not name.startswith("__")


def names_used():
    """Return the private attributes that the folder reads, writes or defines, with those that are
    its own."""
    used, own = set(), set()
    for tree in (ast.parse(path.read_text()) for path in SOURCES):
        methods = {
            id(item) for c in ast.walk(tree) if isinstance(c, ast.ClassDef) for item in c.body
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and private(node.attr):
                used.add(node.attr)
            if isinstance(node, ast.arg | ast.keyword) and private(str(node.arg)):
                used.add(node.arg)
            if isinstance(node, ast.FunctionDef) and private(node.name):
                used.add(node.name)
                own |= {node.name} - trl_names.OVERRIDDEN.keys()
                assert id(node) in methods or node.name not in LISTED
    return used, own


def test_the_list_has_all_private_names_and_no_other():
    used, own = names_used()
    assert used - own == LISTED
    # what is "own" is not TRL's by chance: an override that nobody has listed
    for name in own:
        assert not hasattr(GRPOTrainer, name), name


def test_of_trls_methods_none_but_those_listed_is_overridden():
    public = {"save_model", "train", "get_train_dataloader", "__init__"}
    theirs = {name for name in vars(MinerGRPOTrainer) if callable(getattr(GRPOTrainer, name, None))}
    own_of_python = {"__doc__", "__module__"}
    assert theirs - public - own_of_python == trl_names.OVERRIDDEN.keys()


def test_nothing_global_is_replaced():
    """No attribute of a module or a class of others is written, nor `setattr` and `patch` used."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Name):
                assert node.id not in ("setattr", "patch"), path
            targets = node.targets if isinstance(node, ast.Assign) else ()
            for target in (t for t in targets if isinstance(t, ast.Attribute)):
                root = ast.unparse(target).split(".")[0]
                assert root in ("self", "trainer", "view"), path


def test_what_a_method_writes_is_declared():
    """A misspelt assignment would be a new attribute, of which mypy says nothing."""
    source = Path(folder.__file__).with_name("trainer.py").read_text()
    (kind,) = (
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and node.name == "MinerGRPOTrainer"
    )
    declared = {"_step"}
    for item in kind.body:
        targets = [item.target] if isinstance(item, ast.AnnAssign) else getattr(item, "targets", [])
        declared |= {ast.unparse(target) for target in targets}
    for method in (item for item in kind.body if isinstance(item, ast.FunctionDef)):
        written = {
            node.attr
            for node in ast.walk(method)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        }
        if method.name == "__init__":
            declared |= written
        assert written <= declared, (method.name, written - declared)


def without(name):
    """Return TRL's trainer without one of the names: a copy of its methods under others."""
    renamed = {
        key: value
        for key, value in vars(GRPOTrainer).items()
        if key != name and key not in ("__dict__", "__weakref__")
    }
    if name in trl_names.OVERRIDDEN:
        return type("GRPOTrainer", (), renamed)

    def uses(function):
        return (
            name in getattr(getattr(function, "__wrapped__", function), "__code__", name).co_names
        )

    methods = {key: value for key, value in renamed.items() if callable(value)}
    kept = {key: value for key, value in methods.items() if not uses(value)}
    kept |= {key: vars(GRPOTrainer)[key] for key in trl_names.OVERRIDDEN if key in kept}
    return type("GRPOTrainer", (), kept)


@pytest.mark.parametrize("name", trl_names.OVERRIDDEN)
def test_a_trl_without_a_method_is_refused_with_its_name(name):
    with pytest.raises(ImportError, match=rf"in TRL 1.99.0 GRPOTrainer has no {name}\("):
        trl_names.check(without(name), "1.99.0")


@pytest.mark.parametrize("name", trl_names.READ)
def test_a_trl_without_an_attribute_is_refused_with_its_name(name):
    class Other(GRPOTrainer):
        pass

    assert name not in trl_names.missing_names(Other)
    assert name in trl_names.missing_names(without(name))


def test_a_method_whose_parameters_moved_counts_as_gone():
    class Moved(GRPOTrainer):
        def _compute_loss(self, inputs, model):
            raise NotImplementedError

    with pytest.raises(
        ImportError, match=r"no _compute_loss\(self, model, inputs\). Install trl==1.16"
    ):
        trl_names.check(Moved, "1.17.0")


def test_another_minor_version_is_one_warning(caplog):
    trl_names.check(GRPOTrainer, "1.16.3")
    assert not caplog.records
    trl_names.check(GRPOTrainer, "1.17.0")
    assert (
        len(caplog.records) == 1 and "tested with TRL 1.16, and this is TRL 1.17.0" in caplog.text
    )
