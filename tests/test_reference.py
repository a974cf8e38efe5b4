"""`kl_on: rows_with_advantage`: the KL penalty, and the reference's forward, where there is an advantage."""

import pytest
import torch
from harness import AS_TRL, Recording, config, metrics_of, problems, trained, weights
from peft import LoraConfig
from peft.tuners.tuners_utils import BaseTunerLayer

BETA, RATE = 0.5, 0.1
PLAIN = dict(optim="sgd", learning_rate=RATE, lr_scheduler_type="constant", max_grad_norm=0.0)
PLAIN |= dict(beta=BETA, use_bias_correction_kl=True)
SPLIT = dict(per_device_train_batch_size=3, gradient_accumulation_steps=4)
LORA = dict(r=4, lora_dropout=0.0, init_lora_weights=False, target_modules="all-linear")


class Moved(Recording):
    """A policy that has left its reference before its first step."""

    def __init__(self, *args, **kwargs):
        self.scored = 0  # rows that the reference has scored
        super().__init__(*args, **kwargs)
        if self.ref_model is not None:
            torch.manual_seed(1)
            for parameter in self.model.parameters():
                parameter.data += 0.1 * torch.randn_like(parameter)
        self.start = weights(self)

    def trl_forward(self, model, input_ids, *args, **kwargs):
        is_off = [module.disable_adapters for module in self.model.modules() if isinstance(module, BaseTunerLayer)]
        if model is self.ref_model or any(is_off):
            self.scored += len(input_ids)
        return super().trl_forward(model, input_ids, *args, **kwargs)


def step(policy, folder, *, lora=False, **settings):
    extra = {"peft_config": LoraConfig(**LORA)} if lora else {}
    settings = {**PLAIN, "max_steps": 1, "kl_on": "rows_with_advantage", **settings}
    return trained(policy, folder, cls=Moved, extra=extra, **settings)


def logps(model, batch):
    ids, mask = (
        torch.cat([batch[f"{part}_{kind}"] for part in ("prompt", "completion")], 1) for kind in ("ids", "mask")
    )
    size = batch["completion_ids"].shape[1]
    logits = model(input_ids=ids, attention_mask=mask).logits[:, -size - 1 : -1]
    return logits.log_softmax(-1).gather(2, batch["completion_ids"].unsqueeze(2)).squeeze(2)


def step_by_hand(trainer, loss_type):
    """Make the step again from the start, on paper as it were; return the mean penalty over rows with an advantage."""
    (batch,), (advantages,), model = trainer.batches, trainer.token_advantages, trainer.model
    mask, has_advantage = batch["completion_mask"], (advantages != 0).any(1, keepdim=True)
    model.load_state_dict(trainer.start, strict=False)
    own = logps(model, batch)
    with torch.no_grad():
        if trainer.ref_model is None:
            with model.disable_adapter():
                reference = logps(model, batch)
        else:
            reference = logps(trainer.ref_model, batch)
    ratio = (own - own.detach()).exp()
    kl = ((reference - own).exp() - (reference - own) - 1) * ratio * has_advantage * mask
    tokens = -ratio * advantages * mask + BETA * kl
    loss = {
        "dapo": lambda: tokens.sum() / mask.sum(),
        "bnpo": lambda: tokens.sum() / mask.sum(),
        "grpo": lambda: (tokens.sum(1) / mask.sum(1)).mean(),
        "dr_grpo": lambda: tokens.sum() / (len(mask) * trainer.max_completion_length),
    }[loss_type]()
    model.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data -= RATE * parameter.grad
    return (kl.sum() / (mask * has_advantage).sum()).item()


CASES = {
    **{loss_type: dict(loss_type=loss_type) for loss_type in ("bnpo", "grpo", "dr_grpo")},
    "in micro-batches": dict(loss_type="dapo", **SPLIT),
    "in TRL's micro-batches": dict(loss_type="grpo", **SPLIT, **AS_TRL),
    "lora": dict(loss_type="dapo", lora=True),
}


@pytest.mark.parametrize("name", CASES)
def test_a_step_is_that_of_a_penalty_masked_by_hand(policy, tmp_path, name):
    """The loss is divided by all rows or all tokens, and the metric `kl` by the tokens of rows with a penalty."""
    trainer = step(policy, tmp_path, **CASES[name])
    found, kl = weights(trainer), step_by_hand(trainer, CASES[name]["loss_type"])
    moved = 0.0
    for parameter, expected in weights(trainer).items():
        assert torch.allclose(found[parameter], expected, atol=1e-6), parameter
        moved = max(moved, float((expected - trainer.start[parameter]).abs().max()))
    assert moved > 1e-3
    has_advantage = (next(trainer.token_advantages) != 0).any(1)
    assert trainer.scored == has_advantage.sum() and 0 < trainer.scored < 12
    if "in" not in name:  # else TRL's is a mean over micro-batches
        assert metrics_of(trainer)[0]["kl"] == pytest.approx(kl, rel=1e-4)


def test_without_any_advantage_nothing_is_scored_and_nothing_moves(policy, tmp_path):
    """And in evaluation, TRL's penalty acts on all rows."""
    trainer = step(policy, tmp_path, reward=lambda prompts, **kwargs: [0.0] * len(prompts))
    assert trainer.scored == 0 and metrics_of(trainer)[0]["kl"] is None
    assert all(torch.equal(weight, trainer.start[name]) for name, weight in weights(trainer).items())
    trainer.args.per_device_eval_batch_size = 12
    assert trainer.evaluate(problems().select(range(3)))["eval_kl"] > 0.01
    assert trainer.scored > 0


def test_without_a_penalty_it_does_nothing_and_says_so(tmp_path, caplog):
    config(tmp_path, kl_on="rows_with_advantage")
    assert "kl_on=rows_with_advantage does nothing without a KL penalty: got beta=0.0" in caplog.text
    with pytest.raises(ValueError, match="kl_on must be one of all, rows_with_advantage: got .rows."):
        config(tmp_path, kl_on="rows", beta=0.1)
