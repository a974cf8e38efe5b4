"""The other methods inside the trainer: what they ask of it, what they do to TRL's run, and what they refuse."""

import logging
import math

import pytest
import torch
from harness import AS_TRL, Recording, assert_same_run, config, crc, metrics_of, mixed_reward, problems, trained
from peft import LoraConfig
from test_resume import At, stop_training
from trl import GRPOConfig, GRPOTrainer

from trl_miner import MinerGRPOConfig, MinerGRPOTrainer
from trl_miner.methods import POLICY_LOSSES
from trl_miner.methods.entropy_adv import entropy_advantages
from trl_miner.methods.grpo import group_relative_advantages
from trl_miner.methods.ucas import ucas_advantages
from trl_miner.trainer.logits import STATISTICS, logit_statistics

OFF_POLICY = dict(per_device_train_batch_size=4, steps_per_generation=3, gradient_accumulation_steps=1)
# Three optimizer steps for each generation, with rates that make the ratios move.
OFF_POLICY_RUN = dict(**OFF_POLICY, max_steps=6, learning_rate=3e-2, advantage_estimator="grpo")


def logs_of(trainer):
    return [log for log in trainer.state.log_history if "reward" in log]


def all_mixed(prompts, completions, **kwargs):
    """Right and wrong take turns, so that every group is mixed."""
    return [float(i % 2) for i in range(len(prompts))]


@pytest.fixture(scope="module")
def grpo(policy, tmp_path_factory):
    return trained(policy, tmp_path_factory.mktemp("grpo"), cls=GRPOTrainer, config_cls=GRPOConfig)


@pytest.mark.parametrize(
    "knobs",
    [
        dict(advantage_estimator="ucas", ucas_beta_pos=0.0, ucas_beta_neg=0.0, ucas_token_coef=0.0),
        dict(advantage_estimator="entropy_adv", entropy_adv_alpha=0.0),
        dict(advantage_estimator="grpo", policy_loss="clip_cov", clip_cov_ratio=0.0),
        dict(advantage_estimator="grpo", policy_loss="kl_cov"),  # strictly on-policy
        dict(
            advantage_estimator="grpo",
            policy_loss="bapo",
            **dict(bapo_low_max=0.5, bapo_high_max=1.5),
        ),
    ],
    ids=lambda knobs: knobs.get("policy_loss", knobs["advantage_estimator"]),
)
def test_at_its_neutral_setting_a_method_is_grpo_bit_for_bit(policy, tmp_path, grpo, knobs):
    assert_same_run(trained(policy, tmp_path, **knobs, **AS_TRL), grpo)


@pytest.mark.parametrize(
    "knobs", [{}, OFF_POLICY | dict(shuffle_dataset=True)], ids=["on-policy", "off-policy and shuffled"]
)
def test_dynamic_sampling_of_mixed_prompts_is_grpo_bit_for_bit(policy, tmp_path, knobs):
    settings = dict(reward=all_mixed, num_problems=12, num_train_epochs=2, max_steps=-1, **knobs)
    expected = trained(policy, tmp_path / "a", cls=GRPOTrainer, config_cls=GRPOConfig, **settings)
    found = trained(policy, tmp_path / "b", advantage_estimator="grpo", dynamic_sampling=True, **settings, **AS_TRL)
    assert_same_run(found, expected)  # 12 prompts in threes: two whole passes, in the order of TRL's sampler
    assert logs_of(found)[-1]["dynamic_sampling/epoch"] == 2.0


@pytest.mark.parametrize("name", ["ucas", "entropy_adv", "ucas+miner"])
def test_where_trl_makes_a_forward_the_scores_come_with_it(policy, tmp_path, name):
    small = dict(entropy_adv_alpha=0.01)  # below the bound that does not depend on the token
    name, _, on_top = name.partition("+")
    both = dict(advantage_estimator=name, all_right=on_top or None)
    trainer = trained(policy, tmp_path, num_iterations=2, max_steps=4, **both, **small)
    assert trainer.forwarded == [12, 12]  # TRL's own, one for each generation
    sizes = [advantages.abs() for advantages in trainer.token_advantages]
    assert any(((size != 0) & (size != size.amax(dim=1, keepdim=True))).any() for size in sizes)


@pytest.mark.parametrize("peft", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("name", ["ucas", "entropy_adv"])
def test_the_reference_models_forward_is_not_taken_for_the_policys(policy, tmp_path, name, peft):
    """With beta and strictly on-policy, TRL's only forward is the reference's."""
    extra = {"peft_config": LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False)} if peft else {}
    trainer = trained(
        policy, tmp_path, extra=extra, advantage_estimator=name, beta=0.1, max_steps=1, learning_rate=0.0
    )
    batch = trainer.batches[0]
    expected = direct_scores(trainer, batch)
    grpo = group_relative_advantages(torch.tensor(mixed_reward(*texts_of(trainer))), 4)
    if name == "entropy_adv":
        wanted = entropy_advantages(grpo, expected["entropies"], batch["completion_mask"])
    else:
        rewards = torch.tensor(mixed_reward(*texts_of(trainer)))
        scores = expected["token_logits"], expected["self_certainty"], batch["completion_mask"]
        wanted = ucas_advantages(rewards, grpo, *scores, num_generations=4)
    assert len(trainer.forwarded) == 2  # the reference's, and its own
    assert torch.allclose(next(trainer.token_advantages), wanted, atol=1e-5)


def texts_of(trainer):
    return list(trainer._logs["prompt"]), list(trainer._logs["completion"])


def direct_scores(trainer, batch):
    """From whole logits, without TRL: entropies, and what UCAS asks for."""
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    with torch.no_grad():
        logits = trainer.model(input_ids=ids, attention_mask=mask).logits.float() / trainer.temperature
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

    def _estimate_advantages(self, output, scores, rewards_NF):
        names = ("old_logps", "entropies", *STATISTICS)
        self.found = scores(names, self.asked), direct_scores(self, output), output["completion_mask"].bool()
        return super()._estimate_advantages(output, scores, rewards_NF)


@pytest.mark.parametrize("peft", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("num_iterations", [1, 2], ids=["own forward", "TRL's forward"])
def test_the_scores_are_those_of_the_whole_logits(policy, tmp_path, monkeypatch, num_iterations, peft):
    monkeypatch.setattr("trl_miner.trainer.logits.LOGITS_BLOCK", 500)  # a few tokens of the 49-token vocabulary
    extra = {"peft_config": LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False)} if peft else {}
    # in three chunks of rows
    settings = dict(per_device_train_batch_size=4, gradient_accumulation_steps=3, num_iterations=num_iterations)
    settings |= dict(advantage_estimator="ucas", max_steps=1, learning_rate=0.0, temperature=0.7)
    trainer = trained(policy, tmp_path, cls=Scoring, extra=extra, **settings)
    found, expected, is_token = trainer.found
    is_token = is_token & Scoring.asked.unsqueeze(1)
    for name, values in expected.items():
        assert torch.allclose(found[name][is_token], values[is_token], atol=1e-5), name
    assert is_token.sum() > 50


def test_the_head_never_sees_more_than_a_chunk(policy, tmp_path, monkeypatch):
    monkeypatch.setattr("trl_miner.trainer.logits.LOGITS_BLOCK", 1000)
    sizes = []
    trainer = Recording(policy, mixed_reward, config(tmp_path, advantage_estimator="ucas", max_steps=1), problems())
    head = trainer.model.get_output_embeddings()

    def seen(module, arguments, output):
        if not trainer.model.is_gradient_checkpointing and output.dim() == 2:  # generation's have three dimensions
            sizes.append(output.numel())

    head.register_forward_hook(seen)
    trainer.train()
    assert len(sizes) > 3 and max(sizes) <= 1000 + head.weight.shape[0]


def test_chunks_change_no_number():
    torch.manual_seed(0)
    head = torch.nn.Linear(8, 50)
    hidden, ids = torch.randn(21, 8), torch.randint(0, 50, (21,))
    whole = logit_statistics(head, hidden, ids, temperature=0.7)
    for chunks in (2, 5, 21, 40):  # more chunks than tokens: some are empty, and the head is called all the same
        for found, expected in zip(
            logit_statistics(head, hidden, ids, temperature=0.7, num_chunks=chunks), whole, strict=True
        ):
            assert torch.allclose(found, expected, rtol=1e-5, atol=1e-6)
    # two equal logits: log-sum-exp less mean is log 2
    flat = logit_statistics(lambda h: torch.zeros(1, 2), torch.zeros(1, 8), torch.tensor([0]))
    assert [x.item() for x in flat] == pytest.approx([0.0, 0.6931472])


@pytest.mark.parametrize("name", [name for name, loss in POLICY_LOSSES.items() if loss.function])
def test_off_policy_the_method_changes_the_run(policy, tmp_path, name):
    plain = trained(policy, tmp_path / "plain", **OFF_POLICY_RUN)
    settings = {
        "clip_cov": dict(clip_cov_ratio=0.2, clip_cov_low=0.1, epsilon=1.0, epsilon_high=1.0),
        "kl_cov": dict(kl_cov_ratio=0.2),
        "bapo": dict(bapo_target=2.0),
    }[name]
    found = trained(policy, tmp_path / "found", policy_loss=name, **OFF_POLICY_RUN, **settings)
    assert any(not torch.equal(a, b) for a, b in zip(found.model.parameters(), plain.model.parameters(), strict=True))
    assert any(key.startswith(f"{name}/") for log in found.state.log_history for key in log)
    assert all(p.isfinite().all() for p in found.model.parameters())


@pytest.mark.parametrize("policy_loss", ["clip_cov", "kl_cov", "bapo"])
def test_evaluation_is_plain_grpo(policy, tmp_path, policy_loss):
    settings = dict(max_steps=1, advantage_estimator="grpo", per_device_eval_batch_size=12)
    losses = []
    for name in ("clip", policy_loss):
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
    whole = trained(policy, tmp_path / "a", per_device_train_batch_size=12, steps_per_generation=2, **settings)
    cut = dict(per_device_train_batch_size=4, steps_per_generation=6, gradient_accumulation_steps=3)
    parts = trained(policy, tmp_path / "b", **cut, **settings)
    names = ("bapo/clip_low", "bapo/clip_high", "bapo/positive_share")
    found, expected = (
        [[log[n] for n in names] for log in t.state.log_history if names[0] in log] for t in (parts, whole)
    )
    assert len(expected) == 4  # the second of each two is off-policy
    for bounds, other_bounds in zip(expected, found, strict=True):
        assert other_bounds == pytest.approx(bounds, rel=1e-4)
    assert len({tuple(bounds) for bounds in expected}) > 2
    for weight, other in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        assert torch.allclose(weight, other, rtol=1e-3, atol=1e-4)  # steps of up to 0.1


@pytest.mark.parametrize("accumulation", [1, 2])
def test_clip_cov_drops_the_same_tokens_after_a_resume(policy, tmp_path, accumulation):
    settings = dict(
        OFF_POLICY_RUN,
        policy_loss="clip_cov",
        clip_cov_ratio=0.1,
        clip_cov_low=0.01,
        steps_per_generation=2 * accumulation,
        gradient_accumulation_steps=accumulation,
        per_device_train_batch_size=12 // accumulation,
        max_steps=8,
        save_strategy="steps",
        save_steps=4,
    )
    whole = trained(policy, tmp_path / "whole", **settings)
    trained(policy, tmp_path / "cut", extra=dict(callbacks=[At(4, stop_training)]), **settings)
    resumed = Recording(policy, mixed_reward, config(tmp_path / "cut", **settings), problems())
    resumed.train(resume_from_checkpoint=str(tmp_path / "cut" / "checkpoint-4"))
    assert metrics_of(resumed)[:8] == metrics_of(whole)[:8]
    assert any(log["clip_cov/dropped"] > 0 for log in logs_of(whole))
    for found, expected in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(found, expected)


def test_clip_cov_draws_anew_at_every_micro_batch(policy, tmp_path):
    args = config(tmp_path, advantage_estimator="grpo", policy_loss="clip_cov")
    trainer = MinerGRPOTrainer(policy, mixed_reward, args, problems())
    trainer.current_gradient_accumulation_steps = 2
    seeds = set()
    for trainer.state.global_step in (0, 1, 2):
        for trainer._step in (0, 1):
            seeds.add(trainer._policy_loss.context()["generator"].initial_seed())
    trainer.args.seed += 1
    assert len(seeds) == 6 and trainer._policy_loss.context()["generator"].initial_seed() not in seeds


class Drawing(Recording):
    """Keeps the prompts of every batch that is trained on, and of every generation."""

    def __init__(self, *args, **kwargs):
        self.kept, self.generated = [], []
        super().__init__(*args, **kwargs)
        generate_round, prompts = self._sampling._generate_round, list(self.train_dataset["prompt"])

        def generate(rows):
            self.generated.append([prompts.index(row["prompt"]) for row in rows[:: self.num_generations]])
            return generate_round(rows)

        self._sampling._generate_round = generate

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        texts = self.processing_class.batch_decode(batch["prompt_ids"], skip_special_tokens=True)
        self.kept.append(texts[:: self.num_generations])
        return batch


DYNAMIC = dict(advantage_estimator="grpo", dynamic_sampling=True, max_steps=6)


def half_mixed(prompts, completions, **kwargs):
    """By prompt, a quarter all right, a quarter all wrong, and the rest right and wrong by turns."""
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
    assert log["dynamic_sampling/generated"] == log["dynamic_sampling/kept"] + log["dynamic_sampling/dropped"]
    assert log["rollouts/generated_total"] == 4 * sum(len(indices) for indices in generated)
    passes = (sum(len(indices) for indices in generated) - too_many) / 12
    assert log["dynamic_sampling/epoch"] == pytest.approx(passes)
    assert any(log["dynamic_sampling/rounds"] > 1 for log in logs_of(trainer))


@pytest.mark.parametrize(("judge", "rounds"), [(half_mixed, 2), (all_mixed, 1)], ids=["several rounds", "one round"])
def test_the_rewards_that_trl_sees_belong_to_the_completions_it_sees(policy, tmp_path, judge, rounds):
    """Rows of several rounds in one batch: advantages, logged texts and extra columns must not be mixed up."""

    def logging_reward(prompts, completions, log_extra, **kwargs):
        log_extra("digest", [crc(p + c) for p, c in zip(prompts, completions, strict=True)])
        return judge(prompts, completions)

    trainer = Drawing(policy, logging_reward, config(tmp_path, **{**DYNAMIC, "max_steps": 5}), problems(12))
    trainer.train()
    logs = trainer._logs  # of the last batch
    assert len(logs["prompt"]) == 12 and logs_of(trainer)[-1]["dynamic_sampling/rounds"] >= rounds
    digests = [crc(p + c) for p, c in zip(logs["prompt"], logs["completion"], strict=True)]
    assert list(logs["extra"]["digest"]) == digests
    assert list(logs["rewards"]["logging_reward"]) == [i % 2.0 for i in range(12)]


def test_what_a_rollout_func_finds_out_reaches_the_reward_and_the_batch(policy, tmp_path):
    def rollouts(prompts, trainer):
        encode = trainer.processing_class
        ids = [[5 + crc(p) % 20, 6 + i % 7] for i, p in enumerate(prompts)]
        marks = [crc(p) for p in prompts]
        prompt_ids = [encode(p)["input_ids"] for p in prompts]
        return {"prompt_ids": prompt_ids, "completion_ids": ids, "mark": marks, "logprobs": None}

    def marked(prompts, completions, mark, **kwargs):
        assert mark == [crc(p) for p in prompts]
        return half_mixed(prompts, completions)

    trainer = trained(policy, tmp_path, cls=Drawing, reward=marked, extra=dict(rollout_func=rollouts), **DYNAMIC)
    assert any(log["dynamic_sampling/rounds"] > 1 for log in logs_of(trainer))
    assert all(log["groups/he"] == 1.0 for log in logs_of(trainer))


@pytest.mark.parametrize(("spg", "stop", "restores"), [(1, 3, False), (1, 4, True), (2, 4, False)])
def test_dynamic_sampling_goes_on_after_a_resume_as_if_nothing_had_been(policy, tmp_path, spg, stop, restores):
    settings = dict(DYNAMIC, save_strategy="steps", save_steps=stop, steps_per_generation=spg)
    settings |= dict(per_device_train_batch_size=12 // spg, gradient_accumulation_steps=1, max_steps=8)
    settings |= dict(restore_callback_states_from_checkpoint=restores)  # transformers then makes the callbacks anew
    whole = Drawing(policy, half_mixed, config(tmp_path / "whole", **settings), problems(12))
    whole.train()
    cut = Drawing(
        policy, half_mixed, config(tmp_path / "cut", **settings), problems(12), callbacks=[At(stop, stop_training)]
    )
    cut.train()
    resumed = Drawing(policy, half_mixed, config(tmp_path / "cut", **settings), problems(12))
    resumed.train(resume_from_checkpoint=str(tmp_path / "cut" / f"checkpoint-{stop}"))
    assert cut.generated + resumed.generated == whole.generated
    assert cut.kept + resumed.kept == whole.kept
    assert metrics_of(resumed)[:8] == metrics_of(whole)[:8]  # running totals included


def test_a_resume_without_the_cycles_rollouts_draws_that_cycles_prompts_again(policy, tmp_path):
    """As after a change of the number of processes. (With them: tests/test_resume.py.)"""
    settings = dict(
        DYNAMIC, save_strategy="steps", save_steps=3, steps_per_generation=2, per_device_train_batch_size=6
    )
    settings |= dict(gradient_accumulation_steps=1)
    cut = Drawing(policy, half_mixed, config(tmp_path, **settings), problems(12), callbacks=[At(3, stop_training)])
    cut.train()
    rollouts = tmp_path / "checkpoint-3" / "rollouts_0.pt"
    torch.save({**torch.load(rollouts), "layout": [2, 6, 1, 2]}, rollouts)  # of 2 processes
    resumed = Drawing(policy, half_mixed, config(tmp_path, **settings), problems(12))
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert resumed.kept[0] == cut.kept[-1] and len(resumed.kept) == 2


def test_a_batch_that_cannot_be_filled_is_filled_up_with_a_warning(policy, tmp_path, caplog):
    def one_kind(prompts, completions, **kwargs):
        return [1.0] * len(prompts)

    settings = dict(DYNAMIC, max_steps=1, dynamic_sampling_max_rounds=2)
    with caplog.at_level(logging.WARNING, logger="trl_miner.trainer"):
        trainer = trained(policy, tmp_path, cls=Drawing, reward=one_kind, **settings)
    assert "found 0 mixed prompts for a batch of 3, in 2 rounds and 6 prompts" in caplog.text
    assert logs_of(trainer)[0]["dynamic_sampling/full"] == 0 and [len(i) for i in trainer.generated] == [3, 3]


def test_evaluation_drops_no_prompt(policy, tmp_path):
    settings = dict(DYNAMIC, eval_strategy="steps", eval_steps=2, per_device_eval_batch_size=12, max_steps=2)
    trainer = Drawing(policy, half_mixed, config(tmp_path, **settings), problems(12), eval_dataset=problems(6))
    trainer.train()
    evaluated = [b for b in trainer.batches if not b["is_training"]]
    assert sum(len(b["advantages"]) for b in evaluated) == 6 * 4  # every prompt, G rollouts each


def test_a_data_set_too_small_to_refill_from_is_refused_before_training(policy, tmp_path):
    with pytest.raises(ValueError, match="at least two batches: got 5 prompts for batches of 3"):
        MinerGRPOTrainer(policy, mixed_reward, config(tmp_path, **DYNAMIC), problems(5))


def test_a_streaming_data_set_is_refused_where_prompts_must_be_found_again(policy, tmp_path):
    with pytest.raises(ValueError, match="streaming"):
        MinerGRPOTrainer(policy, mixed_reward, config(tmp_path, **DYNAMIC), problems().to_iterable_dataset())


@pytest.mark.parametrize(
    ("estimator", "name"),
    [("ucas", "final_logit_softcapping"), ("own_estimators.asks_late_for_logits", "logits_soft_cap")],
)
def test_a_model_that_changes_its_logits_afterwards_is_refused_where_they_are_read(policy, tmp_path, estimator, name):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(policy)
    setattr(model.config, name, 30.0)
    with pytest.raises(ValueError, match=name):
        args = config(tmp_path, advantage_estimator=estimator)
        MinerGRPOTrainer(model, mixed_reward, args, problems()).train()


@pytest.mark.parametrize("name", ["grpo", "ucas", "rl_zvp"])
def test_the_model_card_does_not_credit_miner_for_another_method(policy, tmp_path, name):
    args = config(tmp_path, advantage_estimator=name)
    trainer = MinerGRPOTrainer(policy, mixed_reward, args, problems())
    trainer.create_model_card(model_name="m")
    card = (tmp_path / "README.md").read_text()
    assert "2601.04731" not in card and f"`{name}`" in card


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (dict(policy_loss="kl_cov"), "does nothing strictly on-policy"),
        (dict(policy_loss="bapo"), "does nothing strictly on-policy"),
        (dict(advantage_estimator="ucas", importance_sampling_level="sequence"), "advantage_estimator='ucas'"),
        (
            dict(advantage_estimator="own_estimators.by_length", dynamic_sampling=True),
            "drops the all-right and all-wrong prompts that own_estimators.by_length learns from: got",
        ),
        (dict(prompt_selection="greso"), "generates all-right prompts less often, from which MINER would learn"),
        (dict(prompt_selection="thompson"), "prompt_selection=thompson generates all-right prompts less often"),
        (
            dict(prompt_selection="greso", advantage_estimator="grpo", all_right="constant", all_wrong="rl_zvp"),
            "all-right and all-wrong prompts less often, from which Constant credit on all-right prompts and RL-ZVP",
        ),
    ],
)
def test_settings_without_effect_or_against_each_other_are_warned_of(tmp_path, caplog, settings, words):
    with caplog.at_level(logging.WARNING, logger="trl_miner.config"):
        config(tmp_path, cls=MinerGRPOConfig, **settings)
    assert words in caplog.text


@pytest.mark.parametrize(
    "settings",
    [
        dict(prompt_selection="greso", advantage_estimator="grpo"),
        dict(prompt_selection="greso", advantage_estimator="ucas", all_right="none", all_wrong="none"),
        dict(dynamic_sampling=True, advantage_estimator="own_estimators.OF_MIXED"),
    ],
)
def test_settings_that_go_together_are_not_warned_of(tmp_path, caplog, settings):
    config(tmp_path, cls=MinerGRPOConfig, **settings)
    assert not caplog.text
