"""Where the old policy's log-probs come from, and for which rows they are computed."""

import pytest
import torch
from harness import build_trainer, fixed_rollouts, train
from trainer.test_batch import logps_of

from trl_miner.trainer.old_logps import score


class Counting:
    """A model that notes the rows and tokens of each forward without a gradient."""

    def __init__(self, trainer):
        self.rows, self.tokens = [], 0
        trainer.model.register_forward_pre_hook(self.look, with_kwargs=True)

    def look(self, model, args, kwargs):
        if not torch.is_grad_enabled() and "labels" in kwargs:
            self.rows.append(len(kwargs["input_ids"]))
            self.tokens += kwargs["input_ids"].numel()


def counted(policy, tmp_path, **overrides):
    trainer = build_trainer(policy, tmp_path, **overrides)
    counting = Counting(trainer)
    trainer.train()
    return trainer, counting.rows


def test_only_all_right_rows_are_forwarded_where_trl_has_no_log_probs(policy, tmp_path):
    """4 of 12, or 8 where the mixed prompt has come out all right, too."""
    trainer, rows = counted(policy, tmp_path, more={"rollout_func": fixed_rollouts})
    assert "old_per_token_logps" not in trainer.batches[0].output
    assert sum(rows) == sum(int(batch.rollouts.kinds.is_ph_N.sum()) for batch in trainer.batches)
    assert 0 < sum(rows) < 5 * 12


def test_where_trl_has_them_there_is_no_other_forward(policy, tmp_path):
    trainer, rows = counted(policy, tmp_path, num_iterations=2, max_steps=2)
    assert "old_per_token_logps" in trainer.batches[0].output
    assert sum(rows) == 12  # TRL's own


def test_grpo_asks_for_none(policy, tmp_path):
    assert counted(policy, tmp_path, advantage_estimator="grpo")[1] == []


def with_logprobs(prompts, trainer, missing=False):
    rolled = fixed_rollouts(prompts, trainer)
    logprobs = [[-0.5] * len(ids) for ids in rolled["completion_ids"]]
    if missing:
        logprobs[0][0] = None
    return {**rolled, "logprobs": logprobs}


def test_the_samplers_are_taken(policy, tmp_path):
    trainer, rows = counted(policy, tmp_path, more={"rollout_func": with_logprobs}, max_steps=2)
    assert rows == []
    every = torch.ones(12, dtype=torch.bool)
    found = trainer.batches[0].rollouts.score("old_logps", every)
    assert torch.equal(found, trainer.batches[0].output["sampling_per_token_logps"])


OTHER = [dict(top_k=5), dict(top_p=0.9), dict(min_p=0.1), dict(repetition_penalty=1.1)]
OTHER += [dict(generation_kwargs={"typical_p": 0.9})]


@pytest.mark.parametrize("changed", OTHER, ids=str)
def test_not_where_it_draws_from_something_else_than_the_policy(policy, tmp_path, changed):
    more = {"rollout_func": with_logprobs}
    assert sum(counted(policy, tmp_path, more=more, max_steps=1, **changed)[1]) == 4


def test_not_where_one_is_missing_among_the_rows_asked_for(policy, tmp_path):
    def rolled(prompts, trainer):
        return with_logprobs(prompts, trainer, missing=True)

    trainer = train(policy, tmp_path, more={"rollout_func": rolled}, max_steps=1, learning_rate=0.0)
    (batch,) = trainer.batches
    first, last = torch.zeros(2, 12, dtype=torch.bool)
    first[0] = last[-1] = True
    trainer.model.train()
    found = score(trainer, batch.output, "old_logps", last)
    assert torch.equal(found, batch.output["sampling_per_token_logps"].nan_to_num())
    found = score(trainer, batch.output, "old_logps", first)
    expected = logps_of(trainer.model, batch.output)
    assert torch.allclose(found[0], expected[0], atol=1e-5)


def test_each_score_is_that_of_a_plain_forward(policy, tmp_path):
    trainer = train(
        policy,
        tmp_path,
        more={"rollout_func": fixed_rollouts},
        learning_rate=0.0,
        max_steps=1,
        temperature=0.7,
    )
    (batch,) = trainer.batches
    output, every = batch.output, torch.ones(12, dtype=torch.bool)
    trainer.model.train()
    names = ("old_logps", "entropies", "token_logits", "self_certainty")
    found = {name: score(trainer, output, name, every) for name in names}
    for i, is_token in enumerate(output["completion_mask"].bool()):
        prompt = output["prompt_ids"][i, output["prompt_mask"][i].bool()]
        ids = output["completion_ids"][i, is_token]
        with torch.no_grad():
            logits = trainer.model(torch.cat([prompt, ids])[None]).logits[0, len(prompt) - 1 : -1]
        logits = logits / 0.7
        logps = logits.log_softmax(1)
        own = torch.arange(len(ids)), ids
        expected = {
            "old_logps": logps[own],
            "entropies": -(logps.exp() * logps).sum(1),
            "token_logits": logits[own],
            "self_certainty": logits.logsumexp(1) - logits.mean(1),
        }
        for name in names:
            assert torch.allclose(found[name][i, is_token], expected[name], atol=1e-5), name


def test_the_forward_goes_by_length_without_its_padding(policy, tmp_path):
    """Rows of 1 to 40 tokens: the same log-probs as one by one, in order."""

    def rolled(prompts, trainer):
        return fixed_rollouts(prompts, trainer, spread=40)

    trainer = train(policy, tmp_path, more={"rollout_func": rolled}, learning_rate=0.0, max_steps=1)
    (batch,) = trainer.batches
    trainer.model.train()
    trainer.args.per_device_train_batch_size = 2
    every, counting = torch.ones(12, dtype=torch.bool), Counting(trainer)
    found = score(trainer, batch.output, "old_logps", every)
    is_token = batch.output["completion_mask"].bool()
    columns = batch.output["prompt_ids"].shape[1] + is_token.shape[1]
    assert counting.tokens < 0.7 * 12 * columns
    expected = logps_of(trainer.model, batch.output)
    assert torch.allclose(found[is_token], expected[is_token], atol=1e-5)
