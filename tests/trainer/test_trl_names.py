"""TRL's private names: the list is what the code uses, and a TRL without one of them is told."""

import ast
from pathlib import Path

import pytest
from trl import GRPOTrainer

from trl_miner import trainer as folder
from trl_miner.trainer import trl_names

LISTED = {*trl_names.OVERRIDDEN, *trl_names.READ, *trl_names.OF_TRANSFORMERS}


def private(name):
    return name.startswith("_") and not name.startswith("__")


def test_the_list_has_all_private_names_that_are_not_our_own():
    used, own = set(), set()
    for path in Path(folder.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and private(node.attr):
                used.add(node.attr)
            if isinstance(node, ast.arg | ast.keyword) and private(str(node.arg)):
                used.add(node.arg)
            if isinstance(node, ast.FunctionDef) and private(node.name):
                own |= {node.name} - trl_names.OVERRIDDEN.keys()
    assert used - own == LISTED
    # what is "own" is not TRL's by chance: an override that nobody has listed
    assert not [name for name in own if hasattr(GRPOTrainer, name)]


def trainer_without(name, moved=""):
    """Return a class with all of TRL's names but one; of a method the parameters may be others."""
    lines = ["class GRPOTrainer:"]
    for method, parameters in trl_names.OVERRIDDEN.items():
        parameters = "self, inputs, model" if method == moved else parameters
        lines += [f"    def {method}({parameters}): ..."] * (method != name)
    lines += ["    def train(self):", "        return self"]
    lines += [f"        self.{attribute}" for attribute in trl_names.READ if attribute != name]
    exec("\n".join(lines), made := {})
    return made["GRPOTrainer"]


@pytest.mark.parametrize("name", [*trl_names.OVERRIDDEN, *trl_names.READ])
def test_a_trl_without_a_name_is_refused_with_it(name):
    with pytest.raises(ImportError, match=rf"in TRL 1.99.0 GRPOTrainer has no {name}[(.]"):
        trl_names.check(trainer_without(name), "1.99.0")


def test_a_method_whose_parameters_moved_counts_as_gone():
    with pytest.raises(ImportError, match=r"no _compute_loss\(self, model, inputs\). Install trl"):
        trl_names.check(trainer_without("", moved="_compute_loss"), "1.17.0")


def test_another_minor_version_is_one_warning(caplog):
    trl_names.check(GRPOTrainer, "1.16.3")
    assert not caplog.records
    trl_names.check(trainer_without(""), "1.17.0")
    assert len(caplog.records) == 1 and "and this is TRL 1.17.0" in caplog.text
