"""The sampler's log-probs are compared with the policy's, on the first batch that uses them and
after a resume."""

import math
from itertools import chain, cycle, repeat

import pytest
import torch
from harness import Recording, build_policy, logps_of, trained
from test_trainer import fixed_rollouts
from transformers import AutoModelForCausalLM

from trl_miner.trainer.sampler_check import METRIC

NAN = math.nan


def sampler(temperature=None, change=lambda logp: logp, model=None):
    """A `rollout_func` whose log-probs are the policy's, or a model's, at a temperature; `change`
    acts on each."""

    def rollouts(prompts, trainer):
        rolled = fixed_rollouts(prompts, trainer)
        logps = logps_of(model or trainer.model, rolled, temperature or trainer.temperature)
        return {**rolled, "logprobs": [[change(logp) for logp in row] for row in logps]}

    return {"rollout_func": rollouts}


@pytest.fixture(scope="module")
def sharp(tmp_path_factory):
    """The folder of a policy with an opinion: the logits of a token spread by 2."""
    folder = build_policy(tmp_path_factory.mktemp("sharp"))
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        model.lm_head.weight.mul_(2 / (0.02 * 32**0.5))
    model.save_pretrained(folder)
    return folder


def compared(trainer):
    return [log[METRIC] for log in trainer.state.log_history if METRIC in log]


@pytest.mark.parametrize("temperature", [0.7, 1.2])
def test_the_policys_log_probs_pass_and_cost_one_forward(sharp, tmp_path, temperature):
    trainer = trained(sharp, tmp_path, extra=sampler(), max_steps=3, temperature=temperature)
    assert trainer.forwarded == [12] and compared(trainer) == [pytest.approx(0, abs=1e-5)]
    assert trainer.has_credit


def test_without_the_samplers_log_probs_a_forward_scores_every_batch(sharp, tmp_path):
    def without(prompts, trainer):
        return {**fixed_rollouts(prompts, trainer), "logprobs": None}

    settings = dict(max_steps=2, temperature=0.7)
    found = trained(sharp, tmp_path / "a", extra={"rollout_func": without}, **settings)
    right = trained(sharp, tmp_path / "b", extra=sampler(), **settings)
    assert found.forwarded == [4, 4] and compared(found) == []
    for batch, expected in zip(found.batches, right.batches, strict=True):
        assert torch.allclose(batch["advantages"], expected["advantages"], rtol=1e-3, atol=1e-7)


def test_only_a_method_that_can_take_them_gets_the_samplers(sharp, tmp_path):
    """A record of tokens asks for log-probs too, and gets those of a forward."""
    settings = dict(max_steps=1, temperature=0.7, advantage_estimator="grpo", log_token_credit=1)
    trainer = trained(sharp, tmp_path, extra=sampler(1.0), **settings)
    assert trainer.forwarded == [12] and compared(trainer) == []


def test_raw_log_probs_and_another_models_are_refused(sharp, policy, tmp_path):
    other = AutoModelForCausalLM.from_pretrained(policy)
    for extra in (sampler(1.0), sampler(model=other)):
        with pytest.raises(
            ValueError, match=r"--logprobs-mode processed_logprobs.* runs the model that trains"
        ):
            trained(sharp, tmp_path, extra=extra, max_steps=1, temperature=0.7)


@pytest.mark.parametrize(
    "settings",
    [dict(top_p=0.9), dict(generation_kwargs={"x": 1})],
    ids=str,
)
def test_a_sampler_that_cuts_or_changes_probabilities_is_not_asked(sharp, tmp_path, settings):
    """The policy's are without: in TRL's loss and of its reference."""
    trainer = trained(
        sharp, tmp_path, extra=sampler(change=lambda logp: -9.0), max_steps=2, **settings
    )
    assert trainer.forwarded == [4, 4] and compared(trainer) == []


def test_the_check_changes_nothing_and_drops_nothing_out(sharp, tmp_path, monkeypatch):
    """With dropout the policy's own log-probs would be off by more than the limit."""

    class Dropping(Recording):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            for layer in self.model.model.layers:
                layer.self_attn.attention_dropout = 0.5

    def sampled(prompts, trainer):
        trainer.model.eval()
        rolled = sampler()["rollout_func"](prompts, trainer)
        trainer.model.train()
        return rolled

    extra = {"rollout_func": sampled}
    found = trained(sharp, tmp_path / "a", cls=Dropping, extra=extra, max_steps=2)
    assert compared(found) == [pytest.approx(0, abs=1e-5)] and all(
        m.training for m in found.model.modules()
    )
    monkeypatch.setattr("trl_miner.trainer.scoring.SamplerCheck.check", lambda *_: None)
    expected = trained(sharp, tmp_path / "b", cls=Dropping, extra=extra, max_steps=2)
    weights = dict(expected.model.named_parameters())
    assert all(
        torch.equal(weight, weights[name]) for name, weight in found.model.named_parameters()
    )


def first_tokens(count, change):
    """A `rollout_func` whose rows have a log-prob at the first tokens alone, off by what `change`
    yields."""

    def rollouts(prompts, trainer):
        rolled = fixed_rollouts(prompts, trainer)
        exact = logps_of(trainer.model, rolled, trainer.temperature)
        rows = [
            [logp + next(change) if i < count else NAN for i, logp in enumerate(row)]
            for row in exact
        ]
        return {**rolled, "logprobs": rows}

    return {"rollout_func": rollouts}


def test_a_few_tokens_are_no_verdict(sharp, tmp_path):
    """One of twelve is 3 nats away: a mean of 0.25 by chance. Of the first 60 it is 0.05."""
    outlier = first_tokens(1, chain([-3.0], repeat(0.0)))
    trainer = trained(sharp, tmp_path / "a", extra=outlier, max_steps=9, learning_rate=0.0)
    assert trainer.forwarded == [12] * 5 and compared(trainer) == [pytest.approx(0.05, abs=1e-5)]
    with pytest.raises(ValueError, match=r"0\.25 nats per token away on average"):
        trained(
            sharp, tmp_path / "b", extra=first_tokens(1, cycle([-3.0, *[0.0] * 11])), max_steps=9
        )


def test_a_batch_without_log_probs_costs_no_forward(sharp, tmp_path):
    trainer = trained(sharp, tmp_path, extra=sampler(change=lambda logp: NAN), max_steps=2)
    assert trainer.forwarded == [] and compared(trainer) == []
