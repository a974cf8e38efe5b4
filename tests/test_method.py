"""The records of the methods: what they state, and that nothing else does."""

import inspect
import re
from dataclasses import fields

import pytest

from trl_miner import MinerGRPOConfig
from trl_miner.methods import ESTIMATORS, METHODS, POLICY_LOSSES, SELECTIONS, Knob
from trl_miner.methods.bapo import bapo
from trl_miner.methods.miner import miner_advantages

OURS = {"constant", "entropy", "placebo"}


def test_every_method_states_a_paper_and_every_knob_a_unit_or_range():
    settings_alone = SELECTIONS.keys() | {"gspo", "dynamic_sampling", "reinforce_ada"}
    assert METHODS.keys() == ESTIMATORS.keys() | POLICY_LOSSES.keys() | settings_alone
    for name, method in METHODS.items():
        assert method.name == name and method.label
        assert name in OURS or re.fullmatch(r"\d{4}\.\d{5}", method.arxiv), name
        for knob in method.knobs.values():
            assert knob.help.endswith(".") and "%" not in knob.help, knob.name


def test_defaults_and_types_are_those_of_the_functions_signature():
    default = inspect.signature(miner_advantages).parameters["gamma"].default
    assert METHODS["miner"].knobs["gamma"].default == default == 2.0
    assert METHODS["miner"].knobs["lambda_max"].type == float | None
    by_name = {field.name: field for field in fields(MinerGRPOConfig)}
    for method in METHODS.values():
        for name, knob in method.knobs.items():
            assert by_name[method.setting(name)].default == knob.default
            # (a field's own type is changed by transformers, when it makes a parser)
            assert MinerGRPOConfig.__annotations__[method.setting(name)] == knob.type
    assert set(METHODS["bapo"].knobs) == set(inspect.signature(bapo).parameters) - {
        *("logps_BT", "old_logps_BT", "advantages_BT", "mask_BT", "world")
    }


@pytest.mark.parametrize(
    ("knob", "value", "words"),
    [
        (dict(at_least=0), -1, "p_knob must be at least 0: got -1. The default is 1.0."),
        (dict(at_least=0), float("nan"), "p_knob must be at least 0: got nan"),
        (dict(at_least="low"), 1, "p_knob must be at least 2: got 1"),
        (dict(at_most=1), 3, "p_knob must be at most 1: got 3. The default is 1.0."),
        (dict(one_of=("a", "b")), "c", "p_knob must be one of a, b: got 'c'"),
        (dict(at_least=0, type=float | None), -1, "p_knob must be at least 0, or None: got -1"),
    ],
)
def test_a_value_out_of_range_is_named_with_its_rule(knob, value, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        Knob(**{"name": "knob", "default": 1.0, **knob}).check(value, {"low": 2}, "p_")
