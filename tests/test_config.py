import pytest
from harness import config
from trl import GRPOConfig

from trl_miner import MinerGRPOConfig


def test_the_defaults_are_the_papers(tmp_path):
    args = config(tmp_path)
    assert (args.advantage_estimator, args.miner_gamma, args.miner_lambda_max) == ("miner", 2.0, 1.5e-3)
    assert (args.miner_credit, args.miner_intrinsic, args.correct_threshold) == ("focal", "nll", 1.0)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (dict(num_generations=1), "num_generations must be at least 2.*got 1"),
        (dict(num_generations=0), "num_generations must be at least 2.*got 0"),
        (dict(advantage_estimator="minor"), "advantage_estimator must be one of grpo, miner: got 'minor'"),
        (dict(miner_gamma=-2.0), "miner_gamma must be at least 0: got -2.0"),
        (dict(miner_lambda_max=-1e-3), "miner_lambda_max must be at least 0.*got -0.001"),
        (dict(miner_lambda_max=float("nan")), "miner_lambda_max must be at least 0.*got nan"),
        (dict(miner_lambda_max=float("-inf")), "miner_lambda_max must be at least 0.*got -inf"),
        (dict(miner_credit="focus"), "miner_credit must be one of focal, uniform, rank, inverse: got 'focus'"),
        (dict(miner_intrinsic="entropy"), "miner_intrinsic must be one of nll, constant: got 'entropy'"),
        (dict(miner_constant_reward=-0.1), "miner_constant_reward must be at least 0: got -0.1"),
        (dict(correct_threshold=float("nan")), "correct_threshold must be a number"),
    ],
)
def test_a_bad_value_is_named_with_what_would_do(tmp_path, change, named):
    with pytest.raises(ValueError, match=named):
        config(tmp_path, **change)


def test_an_infinite_cap_is_no_cap(tmp_path):
    assert config(tmp_path, miner_lambda_max=float("inf")).miner_lambda_max is None


def test_a_grpo_config_keeps_what_it_derived(tmp_path):
    plain = config(tmp_path, cls=GRPOConfig, steps_per_generation=2)
    taken = MinerGRPOConfig.from_grpo_config(plain)
    assert {name: getattr(taken, name) for name in vars(plain)} == vars(plain)
    assert taken.generation_batch_size == 24 and taken.miner_gamma == 2.0
    assert MinerGRPOConfig.from_grpo_config(taken) is taken


def test_every_own_field_has_help_text():
    own = set(MinerGRPOConfig.__dataclass_fields__) - set(GRPOConfig.__dataclass_fields__)
    for name in own:
        assert MinerGRPOConfig.__dataclass_fields__[name].metadata["help"].endswith("."), name
        assert f"{name} (`" in MinerGRPOConfig.__doc__, name
