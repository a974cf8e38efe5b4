"""The other methods inside the trainer: what they ask of it, what they do to TRL's run, and what
they refuse."""

import math

import pytest
import torch
from harness import (
    AS_TRL,
    At,
    Recording,
    assert_same_run,
    config,
    crc,
    mixed_reward,
    problems,
    stop_training,
    trained,
)
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

from trl_miner import MinerGRPOTrainer
from trl_miner.runs.checkpoints import finish
from trl_miner.trainer.logits import STATISTICS

OFF_POLICY = dict(
    per_device_train_batch_size=4, steps_per_generation=3, gradient_accumulation_steps=1
)


def logs_of(trainer):
    return [log for log in trainer.state.log_history if "reward" in log]


def all_mixed(prompts, completions, **kwargs):
    """Right and wrong take turns, so that every group is mixed."""
    return [float(i % 2) for i in range(len(prompts))]


@pytest.mark.parametrize(
    "knobs",
    [{}, OFF_POLICY | dict(shuffle_dataset=True)],
    ids=["on-policy", "off-policy and shuffled"],
)
def test_dynamic_sampling_of_mixed_prompts_is_grpo_bit_for_bit(policy, tmp_path, knobs):
    settings = dict(reward=all_mixed, num_problems=12, num_train_epochs=2, max_steps=-1, **knobs)
    expected = trained(policy, tmp_path / "a", cls=GRPOTrainer, config_cls=GRPOConfig, **settings)
    found = trained(
        policy,
        tmp_path / "b",
        advantage_estimator="grpo",
        dynamic_sampling=True,
        **settings,
        **AS_TRL,
    )
    # 12 prompts in threes: two whole passes, in the order of TRL's sampler
    assert_same_run(found, expected)
    assert logs_of(found)[-1]["dynamic_sampling/epoch"] == 2.0


def direct_scores(trainer, batch):
    """From whole logits, without TRL: entropies, and what UCAS asks for."""
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    with torch.no_grad():
        logits = (
            trainer.model(input_ids=ids, attention_mask=mask).logits.float() / trainer.temperature
        )
    logits = logits[:, -batch["completion_ids"].shape[1] - 1 : -1]
    logps = logits.log_softmax(dim=-1)
    return {
        "entropies": -(logps.exp() * logps).sum(dim=-1),
        "token_logits": logits.gather(2, batch["completion_ids"].unsqueeze(2)).squeeze(2),
        "self_certainty": logits.logsumexp(dim=-1) - logits.mean(dim=-1),
        "old_logps": logps.gather(2, batch["completion_ids"].unsqueeze(2)).squeeze(2),
    }


class Scoring(Recording):
    """Asks for every score of some rows, before the estimator does."""

    asked = torch.arange(12) % 5 != 1

    def _estimate_advantages(self, rows, output, scores, batch):
        names = ("old_logps", "entropies", *STATISTICS)
        asked = self.asked.to(self.accelerator.device)
        self.found = (
            scores(names, asked),
            direct_scores(self, output),
            output["completion_mask"].bool(),
        )
        return super()._estimate_advantages(rows, output, scores, batch)


FORWARDS = {"own": {}, "TRL's": dict(num_iterations=2), "the reference's and own": dict(beta=0.1)}


@pytest.mark.parametrize(
    ("forwards", "peft"), [("own", True), ("TRL's", False), ("the reference's and own", True)]
)
def test_the_scores_are_those_of_the_whole_logits(policy, tmp_path, monkeypatch, forwards, peft):
    """With beta and strictly on-policy, TRL's only forward is the reference's, which is not the
    policy's."""
    # a few tokens of the 49-token vocabulary
    monkeypatch.setattr("trl_miner.trainer.logits.LOGITS_BLOCK", 500)
    extra = (
        {"peft_config": LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False)}
        if peft
        else {}
    )
    # in three chunks of rows
    settings = dict(
        per_device_train_batch_size=4, gradient_accumulation_steps=3, **FORWARDS[forwards]
    )
    settings |= dict(advantage_estimator="ucas", max_steps=1, learning_rate=0.0, temperature=0.7)
    trainer = trained(policy, tmp_path, cls=Scoring, extra=extra, **settings)
    found, expected, is_token = trainer.found
    is_token = is_token & Scoring.asked.unsqueeze(1).to(is_token.device)
    for name, values in expected.items():
        assert torch.allclose(found[name][is_token], values[is_token], atol=1e-5), name
    assert is_token.sum() > 50


def test_evaluation_is_plain_grpo(policy, tmp_path):
    settings = dict(max_steps=1, advantage_estimator="grpo", per_device_eval_batch_size=12)
    losses = []
    for name in ("clip", "kl_cov"):
        trainer = MinerGRPOTrainer(
            policy,
            mixed_reward,
            config(tmp_path / name, policy_loss=name, num_iterations=2, **settings),
            problems(),
            eval_dataset=problems(3),
        )
        torch.manual_seed(0)
        losses.append(trainer.evaluate()["eval_loss"])
    assert losses[0] == losses[1]


def test_bapo_has_one_pair_of_bounds_for_an_optimizer_batch_however_it_is_cut(policy, tmp_path):
    """24 rollouts in two optimizer batches: 12 at once, or three times 4."""
    settings = dict(max_steps=4, advantage_estimator="grpo", policy_loss="bapo", learning_rate=0.1)
    whole = trained(
        policy, tmp_path / "a", per_device_train_batch_size=12, steps_per_generation=2, **settings
    )
    cut = dict(per_device_train_batch_size=4, steps_per_generation=6, gradient_accumulation_steps=3)
    parts = trained(policy, tmp_path / "b", **cut, **settings)
    names = ("bapo/clip_low", "bapo/clip_high", "bapo/positive_share")
    found, expected = (
        [[log[n] for n in names] for log in t.state.log_history if names[0] in log]
        for t in (parts, whole)
    )
    assert len(expected) == 4  # the second of each two is off-policy
    for bounds, other_bounds in zip(expected, found, strict=True):
        assert other_bounds == pytest.approx(bounds, rel=1e-4)
    assert len({tuple(bounds) for bounds in expected}) > 2
    for weight, other in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        assert torch.allclose(weight, other, rtol=1e-3, atol=1e-4)  # steps of up to 0.1


class Drawing(Recording):
    """Keeps the prompts of every batch that is trained on, and of every generation."""

    def __init__(self, *args, **kwargs):
        self.kept, self.generated = [], []
        super().__init__(*args, **kwargs)

    def note_rewards(self, rows, *args):
        order = list(self.train_dataset["prompt"])
        self.generated.append([order.index(row["prompt"]) for row in rows[:: self.num_generations]])
        super().note_rewards(rows, *args)

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        texts = self.processing_class.batch_decode(batch["prompt_ids"], skip_special_tokens=True)
        self.kept.append(texts[:: self.num_generations])
        return batch


DYNAMIC = dict(advantage_estimator="grpo", dynamic_sampling=True, max_steps=6)


def half_mixed(prompts, completions, **kwargs):
    """By prompt, a quarter all right, a quarter all wrong, and the rest right and wrong by
    turns."""
    return [[1.0, 0.0, i % 2.0, i % 2.0][crc(p) % 4] for i, p in enumerate(prompts)]


def is_mixed(row):
    return crc(row["prompt"]) % 4 >= 2


def test_dynamic_sampling_draws_in_order_and_trains_on_mixed_prompts_alone(policy, tmp_path):
    """Over more than a pass of 12 prompts, against the same rule written down as a loop."""
    rows = problems(12)
    args = config(tmp_path, **DYNAMIC)
    trainer = Drawing(policy, half_mixed, args, rows)
    trainer.train()
    order, expected, generated, too_many = [*range(12)] * 9, [], [], 0
    for _ in range(6):
        kept, drawn = [], 0
        while len(kept) < 3:
            # as many as should do, going by the share kept so far
            count = min(3, math.ceil((3 - len(kept)) * (drawn / max(1, len(kept)) if drawn else 1)))
            indices, order, drawn = order[:count], order[count:], drawn + count
            generated.append(indices)
            kept += [i for i in indices if is_mixed(rows[i])]
        order = kept[3:] + order  # one too many comes first in the next batch
        too_many += len(kept[3:])
        expected.append(kept[:3])
    assert too_many > 0
    assert trainer.generated == generated
    assert [[rows["prompt"].index(p) for p in texts] for texts in trainer.kept] == expected
    log = logs_of(trainer)[-1]
    assert log["groups/he"] == 1.0 and log["dynamic_sampling/full"] == 1.0
    assert (
        log["dynamic_sampling/generated"]
        == log["dynamic_sampling/kept"] + log["dynamic_sampling/dropped"]
    )
    assert log["rollouts/generated_total"] == 4 * sum(len(indices) for indices in generated)
    passes = (sum(len(indices) for indices in generated) - too_many) / 12
    assert log["dynamic_sampling/epoch"] == pytest.approx(passes)
    assert any(log["dynamic_sampling/rounds"] > 1 for log in logs_of(trainer))


def test_the_rewards_that_trl_sees_belong_to_the_completions_it_sees(policy, tmp_path):
    """Rows of several rounds in one batch: rewards and logged texts must not be mixed up."""
    seen = {}

    def noting_reward(prompts, completions, **kwargs):
        rewards = half_mixed(prompts, completions)
        seen.update(zip(zip(prompts, completions, strict=True), rewards, strict=True))
        return rewards

    trainer = Drawing(
        policy, noting_reward, config(tmp_path, **{**DYNAMIC, "max_steps": 5}), problems(12)
    )
    trainer.train()
    logs = trainer._logs  # of the last batch
    assert len(logs["prompt"]) == 12 and logs_of(trainer)[-1]["dynamic_sampling/rounds"] >= 2
    rewards = [seen[pair] for pair in zip(logs["prompt"], logs["completion"], strict=True)]
    assert list(logs["rewards"]["noting_reward"]) == rewards == [i % 2.0 for i in range(12)]


def test_a_resume_without_the_cycles_rollouts_draws_that_cycles_prompts_again(policy, tmp_path):
    """As after a change of the number of processes. (With them: tests/test_resume.py.)"""
    settings = dict(
        DYNAMIC,
        save_strategy="steps",
        save_steps=3,
        steps_per_generation=2,
        per_device_train_batch_size=6,
    )
    settings |= dict(gradient_accumulation_steps=1)
    cut = Drawing(
        policy,
        half_mixed,
        config(tmp_path, **settings),
        problems(12),
        callbacks=[At(3, stop_training)],
    )
    cut.train()
    rollouts = tmp_path / "checkpoint-3" / "rollouts_0.pt"
    torch.save({**torch.load(rollouts), "layout": [2, 6, 1, 2]}, rollouts)  # of 2 processes
    finish(tmp_path / "checkpoint-3")
    resumed = Drawing(policy, half_mixed, config(tmp_path, **settings), problems(12))
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert resumed.kept[0] == cut.kept[-1] and len(resumed.kept) == 2


@pytest.mark.parametrize(
    ("estimator", "name"),
    [
        ("ucas", "final_logit_softcapping"),
        ("own_estimators.asks_late_for_logits", "logits_soft_cap"),
    ],
)
def test_a_model_that_changes_its_logits_afterwards_is_refused_where_they_are_read(
    policy, tmp_path, estimator, name
):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(policy)
    setattr(model.config, name, 30.0)
    with pytest.raises(ValueError, match=name):
        args = config(tmp_path, advantage_estimator=estimator)
        MinerGRPOTrainer(model, mixed_reward, args, problems()).train()


def test_the_head_never_sees_more_than_a_chunk(policy, tmp_path, monkeypatch):
    monkeypatch.setattr("trl_miner.trainer.logits.LOGITS_BLOCK", 1000)
    sizes = []
    trainer = Recording(
        policy, mixed_reward, config(tmp_path, advantage_estimator="ucas", max_steps=1), problems()
    )
    head = trainer.model.get_output_embeddings()

    def seen(module, arguments, output):
        # generation's have three dimensions
        if not trainer.model.is_gradient_checkpointing and output.dim() == 2:
            sizes.append(output.numel())

    head.register_forward_hook(seen)
    trainer.train()
    assert len(sizes) > 3 and max(sizes) <= 1000 + head.weight.shape[0]


def test_clip_cov_draws_anew_at_every_micro_batch(policy, tmp_path):
    args = config(tmp_path, advantage_estimator="grpo", policy_loss="clip_cov")
    trainer = MinerGRPOTrainer(policy, mixed_reward, args, problems())
    seeds = set()
    for trainer.state.global_step in (0, 1, 2):
        for trainer.optimizer_step.micro_step in (0, 1):
            seeds.add(trainer._policy_loss.context()["generator"].initial_seed())
    trainer.args.seed += 1
    assert (
        len(seeds) == 6 and trainer._policy_loss.context()["generator"].initial_seed() not in seeds
    )
