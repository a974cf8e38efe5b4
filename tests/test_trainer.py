"""MINER inside the trainer: what it adds to GRPO, where it leaves GRPO alone, and what it logs."""

import math
from pathlib import Path

import pandas as pd
import pytest
import torch
from harness import (
    AS_TRL,
    assert_same_run,
    call_on_ranks,
    config,
    crc,
    mixed_reward,
    never_all_right,
    problems,
    trained,
    weights,
)
from trl import GRPOConfig, GRPOTrainer

from trl_miner import MinerGRPOConfig, MinerGRPOTrainer
from trl_miner.trainer.micro_batches import ROW_MEAN, SUMMED, select_rows


@pytest.fixture(scope="module")
def grpo(policy, tmp_path_factory):
    return trained(policy, tmp_path_factory.mktemp("grpo"), cls=GRPOTrainer, config_cls=GRPOConfig)


@pytest.fixture(scope="module")
def miner(policy, tmp_path_factory):
    return trained(policy, tmp_path_factory.mktemp("miner"))


def test_a_training_set_must_fill_a_generation_batch(policy, tmp_path):
    """TRL would make no step, and save the model as if it were trained."""
    with pytest.raises(
        ValueError, match="must fill a generation batch: got 2 prompts for batches of 3"
    ):
        MinerGRPOTrainer(policy, mixed_reward, config(tmp_path), problems(2))


@pytest.mark.parametrize(
    "knobs",
    [
        dict(advantage_estimator="grpo"),
        dict(miner_lambda_max=0.0),
        dict(
            advantage_estimator="grpo",
            policy_loss="bapo",
            policy_loss_kwargs=dict(low_max=0.5, high_max=1.5),
        ),
    ],
    ids=str,
)
def test_switched_off_it_is_grpo_bit_for_bit(policy, tmp_path, grpo, knobs):
    assert_same_run(trained(policy, tmp_path, **knobs, **AS_TRL), grpo)


def test_without_all_right_prompts_it_is_grpo_bit_for_bit(policy, tmp_path):
    expected = trained(
        policy, tmp_path / "a", cls=GRPOTrainer, config_cls=GRPOConfig, reward=never_all_right
    )
    found = trained(policy, tmp_path / "b", reward=never_all_right, **AS_TRL)
    assert_same_run(found, expected)
    assert all(log["groups/ph"] == 0 for log in found.state.log_history if "reward" in log)


def test_only_all_right_rows_are_forwarded_when_trl_has_no_log_probs(miner):
    assert "old_per_token_logps" not in miner.batches[0]
    expected = []
    for log in (log for log in miner.state.log_history if "reward" in log):
        # without mixed prompts the cap is 0: nothing to compute
        if log["groups/ph"] and log["groups/he"]:
            expected.append(round(log["groups/ph"] * 12))
    assert miner.forwarded == expected and expected


@pytest.mark.parametrize("estimator", ["miner", "entropy_adv", "ucas+miner"])
def test_where_trl_makes_a_forward_the_scores_come_with_it(policy, tmp_path, estimator):
    """Advantages differ from token to token, which they could not without scores."""
    name, _, on_top = estimator.partition("+")
    settings = dict(
        advantage_estimator=name, all_right=on_top or None, num_iterations=2, max_steps=2
    )
    # below its bound
    settings["advantage_estimator_kwargs"] = dict(alpha=0.01) if name == "entropy_adv" else None
    trainer = trained(policy, tmp_path, **settings)
    assert trainer.forwarded == [12]  # TRL's own
    sizes = [advantages.abs() for advantages in trainer.token_advantages]
    assert any(((size != 0) & (size != size.amax(dim=1, keepdim=True))).any() for size in sizes)


def test_the_statistics_say_what_happened(miner):
    logs = [log for log in miner.state.log_history if "reward" in log]
    for advantages, log in zip(miner.token_advantages, logs, strict=True):
        assert log["groups/ph"] + log["groups/he"] + log["groups/nh"] == pytest.approx(1)
        assert log["rollouts/used"] == pytest.approx(
            log["rollouts/grpo"] + log["rollouts/recovered"]
        )
        assert log["rollouts/grpo"] <= log["groups/he"]
        assert log["miner/cap_binds"] == float(log["miner/scale"] < 1)
        assert log["rollouts/used"] == pytest.approx(
            (advantages != 0).any(dim=1).float().mean().item()
        )
        total = log["miner/tau_ref"] + log["miner/scale"] * log.get("miner/tau_pos", 0.0)
        assert advantages.abs().sum().item() == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("loss_type", sorted(SUMMED | ROW_MEAN | {"bnpo"}))
def test_a_loss_that_averages_token_advantages_is_warned_of(tmp_path, caplog, loss_type, level):
    config(tmp_path, loss_type=loss_type, importance_sampling_level=level)
    averages = level == "sequence" and loss_type not in ("cispo", "vespo")
    assert caplog.text.count("averages the advantage") == averages


@pytest.mark.parametrize(
    "knobs",
    [
        dict(scale_rewards="batch", loss_type="bnpo", miner_lambda_max=None, pad_to_multiple_of=8),
        dict(scale_rewards="none", miner_gamma=0.0, importance_sampling_level="sequence"),
        dict(
            mask_truncated_completions=True,
            beta=0.04,
            multi_objective_aggregation="normalize_then_sum",
        ),
        dict(steps_per_generation=4, gradient_accumulation_steps=2, off_policy_mask_threshold=0.5),
        dict(steps_per_generation=1, gradient_accumulation_steps=2, entropy_coef=0.01),
        dict(num_iterations=2, steps_per_generation=2, top_entropy_quantile=0.5),
        dict(gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": True}),
    ],
    ids=str,
)
def test_works_with_trls_settings(policy, tmp_path, knobs):
    trainer = trained(policy, tmp_path, max_steps=3, **knobs)
    logs = [log for log in trainer.state.log_history if "reward" in log]
    assert all(math.isfinite(log["loss"]) for log in logs)
    # an untrained policy hardly ever ends within 10 tokens
    if not knobs.get("mask_truncated_completions"):
        assert any(log["rollouts/recovered"] > 0 for log in logs)
    assert all(batch["advantages"].isfinite().all() for batch in trainer.batches)


def length_reward(completions, **kwargs):
    return [len(completion) / 100 for completion in completions]


def test_a_differing_second_reward_is_never_overridden(policy, tmp_path):
    trainer = trained(
        policy, tmp_path, reward=[mixed_reward, length_reward], reward_weights=[1.0, 0.1]
    )
    for log in (log for log in trainer.state.log_history if "reward" in log):
        assert log["rollouts/recovered"] == 0 and log["groups/ph"] == 0


def test_behind_the_gate_a_second_reward_pushes_no_prompt_and_miner_pays_the_all_right_ones(
    policy, tmp_path
):
    """The table of completions shows what the loss was given, and the token records what was
    rewarded."""
    settings = dict(reward_weights=[1.0, 0.1], gate_on_correctness=True, log_completions=True)
    settings |= dict(num_completions_to_print=0, log_token_credit=1, max_steps=2)
    settings["correct_reward_func"] = "mixed_reward"
    trainer = trained(policy, tmp_path, reward=[mixed_reward, length_reward], **settings)
    logs = [log for log in trainer.state.log_history if "reward" in log]
    assert any(log["groups/gated"] > 0 and log["rollouts/recovered"] > 0 for log in logs)
    for step, log in enumerate(logs, start=1):
        table = pd.read_parquet(tmp_path / "completions" / f"completions_{step:05d}.parquet")
        kinds = table.groupby("prompt")["mixed_reward"].transform("mean")
        assert (table["advantage"][kinds == 0] == 0).all() and (
            table["advantage"][kinds == 1] >= 0
        ).all()
        assert log["rollouts/grpo"] == pytest.approx(((0 < kinds) & (kinds < 1)).mean())
        credit = pd.read_parquet(tmp_path / "credit" / f"credit_{step:05d}.parquet")
        assert credit["reward"].nunique() > 2 and log["groups/ph"] == pytest.approx(
            (kinds == 1).mean()
        )


def fixed_rollouts(prompts, trainer, logprob=-1.0):
    """A rollout_func: tokens and log-probs that follow from the prompt and the row."""
    tokenizer = trainer.processing_class
    prompt_ids = [tokenizer(prompt)["input_ids"] for prompt in prompts]
    vocabulary = len(tokenizer)
    completion_ids = [
        [5 + (crc(prompt) + 31 * row + 7 * j) % (vocabulary - 5) for j in range(4 + row % 3)]
        for row, prompt in enumerate(prompts)
    ]
    logprobs = [[logprob * (1 + row % 4) for _ in ids] for row, ids in enumerate(completion_ids)]
    return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": logprobs}


@pytest.mark.parametrize("loss_type", ["luspo", "dapo"])
def test_a_tiny_cap_leaves_grpos_own_update_alone(policy, tmp_path, unchecked_sampler, loss_type):
    """The batch goes through as (B, T), yet all that PH rows add is a billionth: TRL's update,
    padding included."""
    knobs = dict(loss_type=loss_type, max_steps=2, optim="sgd", learning_rate=0.1)
    ragged = {"rollout_func": fixed_rollouts}
    grpo = trained(policy, tmp_path, cls=GRPOTrainer, config_cls=GRPOConfig, extra=ragged, **knobs)
    found = trained(policy, tmp_path, extra=ragged, miner_lambda_max=1e-9, **knobs)
    assert found.has_credit
    for name, weight in weights(grpo).items():
        assert torch.allclose(weights(found)[name], weight, rtol=1e-5, atol=1e-7), name


def test_tokens_without_a_log_prob_or_from_the_environment_get_no_credit(
    policy, tmp_path, unchecked_sampler
):
    """Each rollout's first token has none, and its second is the environment's."""

    def with_holes(prompts, trainer):
        rollouts = fixed_rollouts(prompts, trainer)
        rollouts["env_mask"] = [[1, 0] + [1] * (len(ids) - 2) for ids in rollouts["completion_ids"]]
        for logprobs in rollouts["logprobs"]:
            logprobs[:2] = float("nan"), -50.0  # must not count in the NLL either
        return rollouts

    trainer = trained(policy, tmp_path, extra={"rollout_func": with_holes}, max_steps=1)
    (batch,), log = trainer.batches, trainer.state.log_history[0]
    advantages = next(trainer.token_advantages)
    assert advantages.isfinite().all() and (batch["tool_mask"][:, 1] == 0).all()
    is_mined = (advantages > 0).any(dim=1) & (advantages[:, 0] == 0)
    assert is_mined.any()  # paid, but not at its unscored first token
    assert (advantages[:, 0] != 0).any()  # mixed groups keep theirs: GRPO needs no log-prob
    assert (log["miner/unscored_tokens"], log["miner/intrinsic_reward"]) == (12, pytest.approx(2.5))
    # one of each rollout
    assert log["rollouts/tokens_total"] == batch["completion_mask"].sum() - 12
    total = log["miner/tau_ref"] + log["miner/scale"] * log["miner/tau_pos"]
    assert advantages.abs().sum().item() == pytest.approx(total, rel=1e-5)


def test_evaluation_is_plain_grpo_and_leaves_no_trace_in_the_training_log(policy, tmp_path):
    trainer = trained(
        policy,
        tmp_path,
        extra={"eval_dataset": problems(6)},
        eval_strategy="steps",
        eval_steps=1,
        per_device_eval_batch_size=12,
        max_steps=2,
    )
    evaluated = [log for log in trainer.state.log_history if "eval_reward" in log]
    assert len(evaluated) == 2 and not any("miner" in key for log in evaluated for key in log)
    modes = [batch["is_training"] for batch in trainer.batches]
    assert modes.count(False) == 4  # two evaluations of 6 prompts x 4 rollouts in batches of 12
    assert all(
        batch["advantages"].dim() == 1 for batch in trainer.batches if not batch["is_training"]
    )
    assert any(batch["advantages"].dim() == 2 for batch in trainer.batches if batch["is_training"])


def test_the_images_of_the_selected_rows_come_along():
    """Qwen-VL's layout: pixel rows and grids of all images in one tensor each, told apart by
    num_images."""
    grids = torch.tensor([[1, 1, 2], [1, 1, 1], [1, 2, 2], [1, 1, 3]])  # 2, 1, 4 and 3 pixel rows
    batch = {
        "completion_ids": torch.arange(8).view(4, 2),
        "num_images": [1, 2, 0, 1],
        "image_grid_thw": grids,
        "pixel_values": torch.arange(10.0).unsqueeze(1),
        "num_items_in_batch": torch.tensor(8),
    }
    selected = select_rows(batch, torch.tensor([3, 1]))
    assert selected["completion_ids"].tolist() == [[6, 7], [2, 3]]
    assert selected["num_images"] == [1, 2]
    assert selected["image_grid_thw"].tolist() == grids[[3, 1, 2]].tolist()
    assert selected["pixel_values"].flatten().tolist() == [7, 8, 9, 2, 3, 4, 5, 6]
    assert selected["num_items_in_batch"] == 8 and batch["num_images"] == [1, 2, 0, 1]


def judged(completions, answer_key, **kwargs):
    return [1.0] * len(completions)


@pytest.mark.parametrize(
    ("rewards", "settings", "words"),
    [
        (judged, {}, "'judged' needs the column.*answer_key.*prompt, solution, level"),
        (
            [mixed_reward, length_reward],
            dict(gate_on_correctness=True),
            "got mixed_reward, length_reward, of which none is a known verifier. Set corr",
        ),
        (
            mixed_reward,
            dict(correct_reward_func="accuracy"),
            "No reward function named 'accuracy' for correct_reward_func. There are mixed_reward",
        ),
    ],
)
def test_rewards_that_lack_something_are_refused_before_training(
    policy, tmp_path, rewards, settings, words
):
    with pytest.raises(ValueError, match=words):
        MinerGRPOTrainer(policy, rewards, config(tmp_path, **settings), problems())


def test_the_model_card_names_the_method_that_trained(policy, tmp_path, miner):
    miner.create_model_card(model_name="tiny", tags="mine")
    card = Path(miner.args.output_dir, "README.md").read_text()
    assert "huggingface.co/papers/2601.04731" in card and "`miner_lambda_max` | `0.0015`" in card
    assert "- mine\n" in card and "[None]" not in card and '"None"' not in card
    trained(policy, tmp_path, advantage_estimator="ucas", max_steps=1).create_model_card(
        model_name="m"
    )
    card = (tmp_path / "README.md").read_text()
    assert "2601.04731" not in card and "`ucas`" in card


def test_batches_of_one_kind_train_on_quietly(policy, tmp_path, caplog, recwarn):
    for value in (1.0, 0.0):
        constant = lambda completions, value=value, **kwargs: [value] * len(completions)  # noqa: E731
        constant.__name__ = "constant"
        trainer = trained(policy, tmp_path, reward=constant, max_steps=1)
        assert trainer.forwarded == []  # nothing could come of it
        assert all(
            log["rollouts/used"] == 0 for log in trainer.state.log_history if "reward" in log
        )
    ours = [r for r in caplog.records if r.name.startswith("trl_miner")]
    assert not ours and not [w for w in recwarn if "trl_miner" in str(w.filename)]


def train_with_a_wrong_gradient(policy, folder, rank=0, **settings):
    """In step 2 of this process, while the loss is right, as cuDNN's attention does it."""
    trainer = MinerGRPOTrainer(policy, mixed_reward, config(folder, **settings), problems())
    kept = []

    def spoil(gradient):
        if trainer.state.global_step == 1:
            kept.append(weights(trainer))
            return gradient * (torch.nan if trainer.accelerator.process_index == rank else 1.0)

    trainer.model.lm_head.weight.register_hook(spoil)
    with pytest.raises(
        FloatingPointError, match="^The gradient of step 2 must be finite: its norm is nan"
    ):
        trainer.train()
    assert all(torch.equal(weight, kept[0][name]) for name, weight in weights(trainer).items())


@pytest.mark.parametrize("settings", [{}, {"max_grad_norm": 0.0}])
def test_a_gradient_that_is_not_finite_ends_the_run_and_reaches_no_weight(
    policy, tmp_path, settings
):
    train_with_a_wrong_gradient(policy, tmp_path, **settings)


@pytest.mark.slow
def test_a_gradient_of_one_process_that_is_not_finite_ends_all(policy, tmp_path):
    call_on_ranks(2, train_with_a_wrong_gradient, policy, tmp_path, 1)


def test_attention_of_cudnn_is_off(policy, tmp_path):
    """Its gradient is NaN for some padded rows (pytorch/pytorch#196678)."""
    torch.backends.cuda.enable_cudnn_sdp(True)
    MinerGRPOTrainer(policy, mixed_reward, config(tmp_path), problems())
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_what_rounding_leaves_of_an_advantage_is_not_counted_as_use(policy, tmp_path):
    """The float32 mean of six 0.3 is not 0.3: TRL's advantage is some 1e-4 where it should be 0."""
    settings = dict(advantage_estimator="grpo", num_generations=6, max_steps=1)
    trainer = trained(
        policy, tmp_path, reward=lambda prompts, **kwargs: [0.3] * len(prompts), **settings
    )
    assert (trainer.batches[0]["advantages"] != 0).any()
    log = next(log for log in trainer.state.log_history if "reward" in log)
    assert log["rollouts/used"] == log["rollouts/grpo"] == log["rollouts/used_total"] == 0


def test_without_a_config_it_has_miners_defaults(policy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # TRL's default is bf16, which we and transformers refuse on a machine without a GPU
    for module in ("transformers.utils", "transformers.training_args"):
        monkeypatch.setattr(f"{module}.is_torch_bf16_gpu_available", lambda: True)
    args = MinerGRPOTrainer(policy, mixed_reward, None, problems()).args
    assert isinstance(args, MinerGRPOConfig) and args.output_dir.endswith("-MINER")
