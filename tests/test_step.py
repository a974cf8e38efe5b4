"""A training step that computes less gives the weights, the loss and the metrics of one that
computes everything."""

import random

import pytest
import torch
from harness import (
    AS_TRL,
    Recording,
    build_policy,
    metrics_of,
    trained,
    weights,
)
from peft import LoraConfig
from transformers import TrainerCallback

from trl_miner.trainer.micro_batches import ROW_MEAN, SUMMED

LOSSES = sorted(SUMMED | ROW_MEAN)
STEP = dict(
    per_device_train_batch_size=3, gradient_accumulation_steps=8, num_generations=4, max_steps=3
)
# Adam divides a gradient by its own size, and so makes of rounding what it likes.
PLAIN = dict(optim="sgd", learning_rate=0.2, lr_scheduler_type="constant", max_grad_norm=0.0)
# Means over the tokens in the loss: TRL's differ where its micro-batches are unlike.
IN_THE_LOSS = ("entropy", "kl", "clip_ratio/", "cispo_clip_ratio", "vespo/")


def ragged(prompts, trainer):
    """A `rollout_func`: tokens that follow from the step and the row, of lengths from 1 to 10, one
    of them 30. Half of the completions come to their end."""
    draw = random.Random(trainer.state.global_step)
    tokenizer = trainer.processing_class
    lengths = [draw.randint(1, 10) for _ in prompts]
    lengths[draw.randrange(len(prompts))] = 30
    completion_ids = [
        [draw.randrange(5, len(tokenizer)) for _ in range(length)] for length in lengths
    ]
    for ids in completion_ids[::2]:
        ids[-1] = tokenizer.eos_token_id
    prompt_ids = [tokenizer(prompt)["input_ids"] for prompt in prompts]
    return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": None}


class Watching(Recording):
    """Also keeps the rows of every forward with a gradient."""

    def __init__(self, *args, **kwargs):
        self.taught = []
        super().__init__(*args, **kwargs)
        self.start = weights(self)

    def trl_forward(self, model, input_ids, attention_mask, *args, **kwargs):
        if torch.is_grad_enabled():
            self.taught.append((input_ids, attention_mask))
        return super().trl_forward(model, input_ids, attention_mask, *args, **kwargs)


def run(policy, folder, *, lora=False, cls=Watching, **settings):
    extra = {"rollout_func": ragged}
    if lora:
        extra["peft_config"] = LoraConfig(
            r=4, lora_dropout=0.0, target_modules="all-linear", init_lora_weights=False
        )
    torch.manual_seed(0)
    return trained(
        policy,
        folder,
        cls=cls,
        extra=extra,
        **{**STEP, **PLAIN, "max_completion_length": 30, **settings},
    )


def assert_same_training(found, expected, tolerance=1e-6):
    moved = 0.0
    for name, weight in weights(expected).items():
        assert (weights(found)[name] - weight).abs().max() <= tolerance * weight.abs().max(), name
        moved = max(moved, float((weight - expected.start[name]).abs().max() / weight.abs().max()))
    assert moved > 1e-3  # three orders above what is compared
    logs, same_logs = metrics_of(expected), metrics_of(found)
    for log, same_log in zip(logs, same_logs, strict=True):
        for name, value in log.items():
            if isinstance(value, float) and not name.startswith(("micro_batches/", *IN_THE_LOSS)):
                assert same_log[name] == pytest.approx(value, rel=2e-5, abs=1e-6), name


class Asking(Watching):
    """Asks after each step for the loss of some rows: twice, and as if there were no training."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.asked = []
        callback = TrainerCallback()
        callback.on_step_end = self.ask
        self.add_callback(callback)

    def ask(self, args, state, control, **kwargs):
        rows, buffer = self._buffered_inputs[state.global_step % 2], self._buffered_inputs
        self.asked.append([self.compute_loss(self.model, rows).item() for _ in range(2)])
        self._buffered_inputs = None
        self.asked[-1].append(self.compute_loss(self.model, rows).item())
        self._buffered_inputs = buffer


def test_a_loss_that_is_asked_for_between_steps_is_that_of_its_rows_and_changes_nothing(
    policy, tmp_path
):
    expected, found = (
        run(policy, tmp_path / "expected"),
        run(policy, tmp_path / "found", cls=Asking),
    )
    assert len(found.asked) == 3 and all(len({*three}) == 1 for three in found.asked)
    assert all(
        torch.equal(weight, weights(found)[name]) for name, weight in weights(expected).items()
    )


def compare(policy, tmp_path, **settings):
    off = {**settings, **AS_TRL, "max_tokens_per_micro_batch": None}
    found, expected = run(policy, tmp_path / "on", **settings), run(policy, tmp_path / "off", **off)
    assert_same_training(found, expected)
    return found, expected


def shares(trainer, name="rows"):
    return [log[f"micro_batches/{name}"] for log in metrics_of(trainer) if "loss" in log]


@pytest.mark.parametrize("loss_type", LOSSES)
def test_a_step_that_leaves_out_padding_and_idle_rows_is_the_same_step(policy, tmp_path, loss_type):
    found, expected = compare(policy, tmp_path, loss_type=loss_type)
    assert max(shares(found)) < 0.6 and max(shares(found, "tokens")) < 0.35
    assert sum(x.numel() for x, _ in found.taught) < 0.35 * sum(
        x.numel() for x, _ in expected.taught
    )


OFF_POLICY = dict(steps_per_generation=16, gradient_accumulation_steps=8)
SETTINGS = {
    "off-policy": OFF_POLICY,
    "windows across iterations": dict(
        num_iterations=2, steps_per_generation=6, gradient_accumulation_steps=4, per_device_train_batch_size=4
    ),
    "several generations a step": dict(steps_per_generation=2, per_device_train_batch_size=4),
    "kl, corrected": dict(beta=0.1, use_bias_correction_kl=True, **OFF_POLICY),
    "lora, kl": dict(lora=True, beta=0.1, learning_rate=0.05),
    "one piece": dict(max_tokens_per_micro_batch=5000),
    "budget below the longest, off-policy": dict(max_tokens_per_micro_batch=30, **OFF_POLICY),
    "budget, one micro-batch": dict(
        max_tokens_per_micro_batch=90, per_device_train_batch_size=24, gradient_accumulation_steps=1
    ),
    "opsm": dict(off_policy_mask_threshold=0.1, **OFF_POLICY),
    "bapo, budget": dict(
        policy_loss="bapo", advantage_estimator="grpo", max_tokens_per_micro_batch=90, num_iterations=2,
        per_device_train_batch_size=24, gradient_accumulation_steps=1,
    ),
    "ucas": dict(advantage_estimator="ucas", all_right="miner"),
    "checkpointing": dict(gradient_checkpointing=True),
    "truncated rows masked": dict(mask_truncated_completions=True, beta=0.1),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_it_is_the_same_step_with(policy, tmp_path, name):
    compare(policy, tmp_path, **SETTINGS[name])


@pytest.mark.slow
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("loss_type", LOSSES)
def test_it_is_the_same_step_off_policy(policy, tmp_path, loss_type, level):
    rows = dict(per_device_train_batch_size=12, gradient_accumulation_steps=2)
    compare(
        policy,
        tmp_path,
        loss_type=loss_type,
        importance_sampling_level=level,
        num_iterations=2,
        **rows,
    )


# Each of these needs TRL's own micro-batches.
KEPT = {
    "top_entropy_quantile": dict(top_entropy_quantile=0.5),
    "entropy bonus": dict(entropy_coef=0.1),
    "policy_loss=clip_cov": dict(
        policy_loss="clip_cov", policy_loss_kwargs=dict(ratio=0.2, low=0.05), **OFF_POLICY
    ),
    "pad_to_multiple_of": dict(pad_to_multiple_of=8),
    "loss_type=bnpo": dict(loss_type="bnpo"),
    # |lp - old lp| is 0 at a generation's first step if both were computed alike; after another
    # order of sums it is
    # 1e-8, and its gradient as large as any.
    "the penalty of policy_loss=kl_cov has a kink": dict(
        policy_loss="kl_cov", policy_loss_kwargs=dict(ratio=0.2), **OFF_POLICY
    ),
}


def assert_micro_batches_are_trls(trainer, caplog, reason):
    ours = [r.getMessage() for r in caplog.records if "micro-batches stay TRL's" in r.getMessage()]
    assert len(ours) == 1 and reason in ours[0]
    widths = [
        sum(batch[f"{part}_ids"].shape[1] for part in ("prompt", "completion"))
        for batch in trainer.batches
    ]
    assert {len(x) for x, _ in trainer.taught} == {3} and {
        x.shape[1] for x, _ in trainer.taught
    } == {*widths}


@pytest.mark.parametrize("reason", KEPT)
def test_a_loss_that_needs_trls_micro_batches_gets_them_and_says_so(
    policy, tmp_path, caplog, reason
):
    settings = KEPT[reason] | (dict(advantage_estimator="grpo") if "policy" in reason else {})
    assert_micro_batches_are_trls(
        run(policy, tmp_path, max_steps=1, **settings), caplog, reason.split("=")[0]
    )


@pytest.mark.slow
def test_a_routers_loss_needs_trls_micro_batches(tmp_path, caplog):
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    policy = build_policy(tmp_path / "policy")
    size = dict(
        hidden_size=32,
        intermediate_size=64,
        moe_intermediate_size=32,
        num_hidden_layers=2,
        head_dim=16,
    )
    size |= dict(
        num_attention_heads=2,
        num_key_value_heads=2,
        num_experts=4,
        num_experts_per_tok=2,
        vocab_size=256,
    )
    Qwen3MoeForCausalLM(Qwen3MoeConfig(**size, pad_token_id=0, eos_token_id=1)).save_pretrained(
        policy
    )
    trainer = run(policy, tmp_path, max_steps=1, router_aux_loss_coef=0.1)
    assert_micro_batches_are_trls(trainer, caplog, "router's loss")


def test_a_budget_bounds_every_forward(policy, tmp_path):
    trainer = run(
        policy, tmp_path, max_tokens_per_micro_batch=60, beta=0.1, num_iterations=2, max_steps=2
    )
    assert max(x.numel() for x, _ in trainer.taught) <= 60
    few = run(policy, tmp_path, max_tokens_per_micro_batch=5000, max_steps=1)
    assert len(few.taught) == 1  # one forward holds a step
    tight = run(policy, tmp_path, max_tokens_per_micro_batch=20, max_steps=1)
    assert all(x.numel() <= 20 or len(x) == 1 for x, _ in tight.taught)


@pytest.mark.parametrize(
    "settings",
    [
        dict(loss_type="dapo"),
        dict(loss_type="grpo", importance_sampling_level="sequence"),
        dict(loss_type="vespo", beta=0.1),
        dict(loss_type="dapo", beta=0.1, max_tokens_per_micro_batch=60),
    ],
    ids=str,
)
def test_the_metrics_of_a_step_are_those_of_all_its_rows_in_one_micro_batch(
    policy, tmp_path, settings
):
    """A rollout left out is never clipped, and has no entropy; with a KL penalty none is."""
    settings = {
        **settings,
        "num_iterations": 2,
        "max_steps": 4,
        "learning_rate": 1.0,
        "epsilon": 1e-3,
    }
    found = run(policy, tmp_path / "on", **settings)
    off = {**settings, **AS_TRL, "max_tokens_per_micro_batch": None}
    whole = dict(per_device_train_batch_size=24, gradient_accumulation_steps=1)
    expected = run(policy, tmp_path / "off", **off, **whole)
    has_kl = "beta" in settings
    of_all_rows = () if has_kl else ("entropy", "clip_ratio/low_min")
    compared = set()
    for log, same_log in zip(metrics_of(expected), metrics_of(found), strict=True):
        for name in (
            name for name in log if name.startswith(IN_THE_LOSS) and name not in of_all_rows
        ):
            assert same_log[name] == pytest.approx(log[name], rel=1e-3, abs=1e-6), name
            compared |= {name} if log[name] else set()
    assert (
        any("clip_ratio" in name or "vespo" in name for name in compared)
        and ("kl" in compared) == has_kl
    )


def test_entropy_is_that_of_the_rows_in_the_loss(policy, tmp_path):
    trainer = run(policy, tmp_path, max_steps=1, learning_rate=0.0)
    (batch,) = trainer.batches
    both = [
        torch.cat([batch[f"{part}_{kind}"] for part in ("prompt", "completion")], 1)
        for kind in ("ids", "mask")
    ]
    size = batch["completion_ids"].shape[1]
    with torch.no_grad():
        logits = trainer.model(input_ids=both[0], attention_mask=both[1]).logits[:, -size - 1 : -1]
    entropies = torch.distributions.Categorical(logits=logits).entropy()
    in_loss = (next(trainer.token_advantages) != 0).any(dim=1, keepdim=True) & batch[
        "completion_mask"
    ].bool()
    assert metrics_of(trainer)[0]["entropy"] == pytest.approx(
        float(entropies[in_loss].mean()), rel=1e-5
    )


def test_where_no_row_teaches_the_metrics_are_of_all(policy, tmp_path):
    trainer = trained(
        policy, tmp_path, cls=Watching, reward=lambda prompts, **kwargs: [0.0] * len(prompts),
        extra={"rollout_func": ragged}, max_completion_length=30, **STEP,
    )  # fmt: skip
    assert all(log["entropy"] > 0 for log in metrics_of(trainer) if "loss" in log)
    assert shares(trainer) == [1.0] * 3 and max(shares(trainer, "tokens")) < 1
