"""Train three steps on rollouts that depend on the prompt and the *global* row alone, with the
weights sharded as the environment says, and write down what came out. Run by test_sharding.py:
train_worker.py POLICY OUTPUT
With the checkpoint of such a run, only go on from it: train_worker.py POLICY OUTPUT CHECKPOINT
"""

import json
import sys
from functools import partial
from pathlib import Path

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from distributed.train_worker import GLOBAL_BATCH, compared_steps, rollouts
from harness import AS_TRL, Recording, config, leave, mixed_reward, problems
from sharding.on_a_cpu import shard_on_a_cpu
from transformers import AutoModelForCausalLM, TrainerCallback

from trl_miner.evaluation.in_training import EvaluationCallback

torch.set_num_threads(1)
NUM_PROMPTS = GLOBAL_BATCH // 4  # two processes hold 6 rows each, and the middle group lies on both
CASES = {
    # scores all-right rows in chunks: as many forwards on every process, or it hangs
    "miner": dict(micro_batches=3),
    "as_trl": dict(micro_batches=3, **AS_TRL),
    # more than micro-batches: one rollout each
    "budget_small": dict(micro_batches=3, max_tokens_per_micro_batch=25),
    # Fewer: two micro-steps are idle.
    "budget_large": dict(
        micro_batches=3, max_tokens_per_micro_batch=1000, gradient_checkpointing=True
    ),
    "ucas+miner": dict(
        advantage_estimator="ucas", all_right="miner"
    ),  # reads the logits of a head that is sharded too
    # compares the sampler's log-probs with a forward, at its temperature and at 1
    "sampler": dict(micro_batches=3, temperature=0.7),
    "bapo": dict(
        advantage_estimator="grpo",
        policy_loss="bapo",
        num_iterations=3,
        learning_rate=3e-2,
        beta=0.1,
        # At the first step the gradient of a row without an advantage is rounding alone, of which
        # Adam would make a whole step.
        adam_epsilon=1e-3,
    ),
    # The checkpoint of step 2 lies inside a generation cycle; "resumed" goes on from it.
    "saved": dict(
        num_iterations=2,
        steps_per_generation=3,
        micro_batches=3,
        save_steps=2,
        accumulation=1,
        steps=8,
    ),
    # Another number of processes goes on from its step 2.
    "kept": dict(save_steps=2, steps=4),
}


def train(
    name,
    policy,
    output,
    *,
    micro_batches=1,
    accumulation=None,
    steps=3,
    resume=None,
    sampler=None,
    **settings,
):
    micro_batch = GLOBAL_BATCH // config(output).world_size // micro_batches
    args = config(
        output / name,
        max_steps=steps,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=accumulation or micro_batches,
        save_strategy="steps" if "save_steps" in settings else "no",
        **settings,
    )
    # by chance the first three prompts have no mixed one
    rows = problems().select(range(NUM_PROMPTS, 48))
    trainer = Recording(
        policy, mixed_reward, args, rows, rollout_func=partial(rollouts, sampler=sampler)
    )
    # Three calls of generate, and two. The problem whose score is a coin's lies on the first
    # process, as alone.
    scores = EvaluationCallback(trainer, rows.select([2, 0, 1]), 5, batch_size=4)
    trainer.add_callback(scores)
    trainer.train(resume_from_checkpoint=resume)
    weights = trainer.accelerator.get_state_dict(trainer.model_wrapped)  # every process takes part
    return {
        "num_processes": trainer.accelerator.num_processes,
        "kind": trainer.accelerator.distributed_type.value,
        "shard": sum(shard.numel() for shard in shards_of(trainer)),
        "steps": compared_steps(trainer, "loss"),
        "weights": {n: w.double().square().sum().item() for n, w in (weights or {}).items()},
        "forwarded": gather_object([trainer.forwarded]),
        "scores": scores.evaluation,
        "folder": str(output / name),
    }


class Nan(torch.autograd.Function):
    """The loss as it is, and a gradient that is not finite, as cuDNN's attention makes it."""

    @staticmethod
    def forward(ctx, loss):
        return loss.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * torch.nan


class Spoiled(Recording):
    """Has a wrong gradient in step 2, on the last process alone."""

    def call_loss(self, *args, **kwargs):
        loss, is_last = super().call_loss(*args, **kwargs), self.accelerator.is_last_process
        return Nan.apply(loss) if self.state.global_step == 1 and is_last else loss

    def all_weights(self):
        weights = self.accelerator.get_state_dict(self.model_wrapped)  # every process takes part
        return {name: weight.cpu().clone() for name, weight in (weights or {}).items()}


def spoil(policy, output):
    """Return what a run says of a gradient that is not finite, and whether the weights stay."""
    args = config(
        output / "spoiled", per_device_train_batch_size=GLOBAL_BATCH // config(output).world_size
    )
    trainer = Spoiled(policy, mixed_reward, args, problems(), rollout_func=rollouts)
    before, callback = {}, TrainerCallback()
    callback.on_step_end = lambda *args, **kwargs: before.update(trainer.all_weights())
    trainer.add_callback(callback)
    try:
        trainer.train()
        told = "nothing"
    except FloatingPointError as error:
        told = str(error)
    after = trainer.all_weights()
    return {
        "num_processes": trainer.accelerator.num_processes,
        "kind": trainer.accelerator.distributed_type.value,
        "told": told,
        "is_same": (
            before.keys() == after.keys()
            and all(torch.equal(before[name], after[name]) for name in after)
        ),
    }


def shards_of(trainer):
    """What this process holds: of the weights with FSDP2 and ZeRO-3, of the optimizer's copies of
    them with ZeRO-2."""
    partitions = getattr(
        getattr(trainer.model_wrapped, "optimizer", None), "single_partition_of_fp32_groups", None
    )
    for tensor in partitions or trainer.model.parameters():
        tensor = getattr(tensor, "ds_tensor", tensor)
        yield tensor.to_local() if hasattr(tensor, "to_local") else tensor


def main(policy, output, checkpoint=None):
    output = Path(output)
    # whole: nothing is sharded yet
    CASES["sampler"]["sampler"] = AutoModelForCausalLM.from_pretrained(policy)
    shard_on_a_cpu()
    if checkpoint is None:
        results = {n: train(n, policy, output, **settings) for n, settings in CASES.items()}
        results["spoiled"] = spoil(policy, output)
        checkpoint = str(output / "saved" / "checkpoint-2")
        results["resumed"] = train("resumed", policy, output, resume=checkpoint, **CASES["saved"])
    else:
        results = {"kept": train("kept", policy, output, resume=checkpoint, **CASES["kept"])}
    if PartialState().is_main_process:
        (output / "result.json").write_text(json.dumps(results))
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
