"""`log_gradient_share`: the gradient of each kind of prompt in an optimizer step, measured beside
it."""

import math

import pytest
import torch
from accelerate import Accelerator
from harness import AS_TRL, Recording, config, mixed_reward, problems, trained, trl_metrics, weights
from peft import LoraConfig

from trl_miner import MinerGRPOTrainer
from trl_miner.trainer.gradient_share import IS_FIRST, GradientShare
from trl_miner.training import RunTrainer

EVERY_STEP = dict(log_gradient_share=1)
# In the first batch the cap leaves little; here all of it passes, and what is compared is of one
# size.
UNCAPPED = dict(EVERY_STEP, miner_lambda_max=None, max_grad_norm=0.0, max_steps=2)
GRADIENTS = {"ph_gradient_norm", "other_gradient_norm", "ph_gradient_share", "gradient_cosine"}


class Watching(Recording):
    """Keeps, of every measured step, both parts of the gradient beside the one that the optimizer
    had."""

    def __init__(self, *args, **kwargs):
        self.found, self.num_graphs = [], 0
        super().__init__(*args, **kwargs)
        if (share := self._gradient_share) is not None:
            self.log_share, share.on_optimizer_step = share.on_optimizer_step, self.keep_and_log

    def keep_and_log(self, *args, **kwargs):
        if (parts := self._gradient_share._parts) is not None:
            parameters = self._gradient_share._parameters()
            ph, other = (flat(gradient, parameters) for gradient in parts)
            self.found.append(
                {"ph": ph, "other": other, "all": flat([p.grad for p in parameters], parameters)}
            )
        return self.log_share(*args, **kwargs)

    def trl_forward(self, *args, **kwargs):
        self.num_graphs += torch.is_grad_enabled()
        return super().trl_forward(*args, **kwargs)


def flat(gradient, parameters):
    pairs = zip(gradient, parameters, strict=True)
    return torch.cat(
        [(torch.zeros_like(p) if g is None else g).flatten().clone() for g, p in pairs]
    )


def logged(trainer):
    """Of every step, the metrics of this module, without their prefix."""
    logs = [log for log in trainer.state.log_history if "loss" in log]
    return [
        {n: log[f"miner/{n}"] for n in sorted(GRADIENTS) if f"miner/{n}" in log} for log in logs
    ]


ACCUMULATED = dict(per_device_train_batch_size=4, gradient_accumulation_steps=3)
OFF_POLICY = dict(num_iterations=2, learning_rate=3e-3)
STEPS = {
    "accumulated": ACCUMULATED,
    "two generations for a step": dict(steps_per_generation=1, gradient_accumulation_steps=2),
    "micro-batches of 40 tokens, twice over": dict(
        OFF_POLICY, **ACCUMULATED, max_tokens_per_micro_batch=40
    ),
    "checkpointing as TRL, by rows": dict(
        gradient_checkpointing=True, loss_type="grpo", **ACCUMULATED, **AS_TRL
    ),
    "entropy quantile": dict(top_entropy_quantile=0.5),
    "by sequence": dict(OFF_POLICY, importance_sampling_level="sequence"),
    "kl_cov": dict(OFF_POLICY, policy_loss="kl_cov", policy_loss_kwargs=dict(ratio=0.2)),
    "bapo accumulated": dict(
        OFF_POLICY, policy_loss="bapo", policy_loss_kwargs=dict(target=2.0), **ACCUMULATED
    ),
    "ucas+miner, sapo": dict(advantage_estimator="ucas", all_right="miner", loss_type="sapo"),
}


@pytest.mark.parametrize("settings", STEPS.values(), ids=STEPS)
def test_both_parts_together_are_the_gradient_of_the_step(policy, tmp_path, settings):
    trainer = trained(policy, tmp_path, cls=Watching, **{**UNCAPPED, **settings})
    assert len(trainer.found) == len(logged(trainer)) == 2
    assert all(any(found[name].norm() > 0 for found in trainer.found) for name in ("ph", "other"))
    for found, values in zip(trainer.found, logged(trainer), strict=True):
        ph, other, whole = found["ph"], found["other"], found["all"]
        torch.testing.assert_close(ph + other, whole, rtol=1e-4, atol=1e-6 * whole.norm().item())
        norms = ph.norm().item(), other.norm().item()
        names = ("ph_gradient_norm", "other_gradient_norm", "ph_gradient_share")
        expected = dict(zip(names, (*norms, norms[0] / sum(norms)), strict=True))
        if all(norms):
            expected["gradient_cosine"] = (ph @ other).item() / math.prod(norms)
        assert values == pytest.approx(expected, rel=1e-4, abs=1e-6)


class OnlyAllRight(Watching):
    """The rows of all other prompts have an advantage of 0."""

    def _estimate_advantages(self, *args):
        found = super()._estimate_advantages(*args)
        return {**found, "advantages": found["advantages"] * found[IS_FIRST].unsqueeze(1)}


def test_the_part_of_all_right_rows_is_the_gradient_without_the_others(policy, tmp_path):
    settings = dict(UNCAPPED, max_steps=1, **ACCUMULATED)
    whole = trained(policy, tmp_path / "whole", cls=Watching, **settings)
    alone = trained(policy, tmp_path / "alone", cls=OnlyAllRight, **settings)
    (found,), (expected,) = whole.found, alone.found
    assert expected["all"].norm() > 0 and expected["other"].norm() == 0
    torch.testing.assert_close(
        found["ph"], expected["all"], rtol=1e-4, atol=1e-6 * expected["all"].norm().item()
    )
    assert logged(alone)[0]["ph_gradient_share"] == 1 and "gradient_cosine" not in logged(alone)[0]


@pytest.mark.parametrize(
    ("term", "step"), [(dict(beta=0.5), 1), (dict(entropy_coef=0.1), 0)], ids=["kl", "entropy"]
)
def test_a_penalty_or_bonus_is_of_neither_part(policy, tmp_path, term, step):
    """The reference is the untrained model: the penalty has no gradient until the second of two
    steps on one batch, before which both runs have the same weights. (Adam would make rounding
    errors large.)"""
    settings = dict(UNCAPPED, num_iterations=2, optim="sgd", learning_rate=1.0)
    without, found = (
        trained(policy, tmp_path / name, cls=Watching, **settings, **more).found[step]
        for name, more in {"without": {}, "with": term}.items()
    )
    assert (found["all"] - without["all"]).norm() > 1e-3 * without["all"].norm()
    for part in ("ph", "other"):
        torch.testing.assert_close(
            found[part], without[part], rtol=1e-3, atol=1e-5 * without[part].norm().item()
        )


@pytest.mark.parametrize(
    ("settings", "lora"),
    [
        (dict(bf16=True), True),
        (dict(OFF_POLICY, policy_loss="bapo", **ACCUMULATED), False),
        (
            dict(dynamic_sampling=True, advantage_estimator="grpo", gradient_checkpointing=True),
            True,
        ),
    ],
    ids=["miner", "bapo", "dapo"],
)
def test_neither_measuring_nor_recording_changes_what_is_trained(policy, tmp_path, settings, lora):
    adapter = LoraConfig(r=4, lora_dropout=0.5, target_modules="all-linear")
    runs = []
    for name, more in {"off": {}, "on": dict(EVERY_STEP, log_token_credit=1)}.items():
        torch.manual_seed(0)
        extra = {"peft_config": adapter} if lora else {}
        runs.append(
            trained(policy, tmp_path / name, extra=extra, **{"max_steps": 2, **settings, **more})
        )
    off, on = runs
    assert all(torch.equal(weights(off)[name], weight) for name, weight in weights(on).items())
    assert trl_metrics(off) == trl_metrics(on)
    assert not any(logged(off)) and all(logged(on)) and (tmp_path / "on" / "credit").is_dir()


def test_at_other_steps_nothing_is_measured_and_a_mean_is_of_measured_steps(policy, tmp_path):
    settings = dict(log_gradient_share=2, max_steps=4)
    trainer = trained(policy, tmp_path / "each", cls=Watching, **settings)
    # one forward of each step, and one more of each that is measured
    assert trainer.num_graphs == 4 + 2
    assert [bool(values) for values in logged(trainer)] == [False, True] * 2
    (mean,) = logged(trained(policy, tmp_path / "four", logging_steps=4, **settings))
    each = [values["ph_gradient_norm"] for values in logged(trainer) if values]
    assert mean["ph_gradient_norm"] == pytest.approx(sum(each) / 2, rel=1e-6)


def test_it_goes_on_from_a_checkpoint_inside_a_generation_that_was_made_without_it(
    policy, tmp_path
):
    halves = dict(per_device_train_batch_size=6, steps_per_generation=2, max_steps=4)
    trained(policy, tmp_path, save_strategy="steps", save_steps=1, **{**halves, "max_steps": 1})
    args = config(tmp_path, **halves, **EVERY_STEP)
    trainer = RunTrainer(policy, mixed_reward, args, problems())
    trainer.train(resume_from_checkpoint="latest")
    assert [bool(values) for values in logged(trainer)][-3:] == [True, True, True]


def test_a_launch_that_it_cannot_measure_is_an_error(policy, tmp_path, monkeypatch):
    trainer = MinerGRPOTrainer(policy, mixed_reward, config(tmp_path, **EVERY_STEP), problems())
    monkeypatch.setattr(Accelerator, "mixed_precision", "fp16")  # without the launch
    with pytest.raises(ValueError, match="got fp16=True. Use bf16.*leave log_gradient_share"):
        GradientShare(trainer)
