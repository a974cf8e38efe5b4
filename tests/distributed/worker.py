"""Trainings on one process or several, with whole weights or in shards, on completions that depend
on the prompt and the place in the global batch alone."""

import os
from dataclasses import replace
from functools import partial

import torch
from accelerate.state import AcceleratorState, DistributedType, PartialState
from harness import build_trainer, fixed_rollouts, leave, problems

GLOBAL_BATCH = 12  # three groups of 4: on two processes the middle one lies on both
CASES = {
    "miner": {},
    "three micro-batches": dict(micro_batches=3),
    "as TRL": dict(micro_batches=3, compute_less=False),
    # on one process alone, as the worker's rewards say
    "all right on the last process": dict(kinds="mixed mixed right", micro_batches=3),
    "nothing counts": dict(kinds="wrong wrong wrong", micro_batches=3),
    "packed": dict(micro_batches=3, packed=True),
    "off policy with a KL": dict(num_iterations=2, micro_batches=3, beta=0.05, loss_type="grpo"),
    "sequence ratios": dict(
        num_iterations=2, micro_batches=2, importance_sampling_level="sequence", epsilon=1e-4
    ),
    "a small budget": dict(micro_batches=6, max_tokens_per_micro_batch=25),
    "ucas": dict(advantage_estimator="ucas", all_right="miner", micro_batches=2),
    "bapo": dict(advantage_estimator="grpo", policy_loss="bapo", num_iterations=3, micro_batches=2),
    "kl_cov": dict(advantage_estimator="grpo", policy_loss="kl_cov", num_iterations=2),
    "dynamic sampling": dict(advantage_estimator="grpo", dynamic_sampling=True),
}
# Not: micro_batches/rows and entropy, which have the rows that fill up the last process.
OWN = ("groups/", "completions/used", "miner/", "correctness/", "dynamic_sampling/")
LOGGED = ("loss", "grad_norm", "reward", "clip_ratio/region", *OWN)


def reward(prompts, completions, kinds, **kwargs):
    """Reward the prompts of a batch in turn as `kinds` says; coins are the completion's length."""
    places = {prompt: place for place, prompt in enumerate(problems()["prompt"])}
    words = kinds.split()
    found = []
    for prompt, completion in zip(prompts, completions, strict=True):
        kind = words[places[prompt] % len(words)]
        found.append({"right": 1.0, "wrong": 0.0}.get(kind, float(len(completion) % 2)))
    return found


def build(policy, folder, kinds="right wrong mixed", micro_batches=1, packed=False, **settings):
    size = int(os.environ.get("WORLD_SIZE", 1))
    named = partial(reward, kinds=kinds)
    named.__name__ = "reward"
    settings = {"max_steps": 3, "optim": "sgd", "learning_rate": 0.5, **settings}
    settings.setdefault("optimizer_batch_size", GLOBAL_BATCH)
    trainer = build_trainer(
        policy,
        folder,
        reward=named,
        more={"rollout_func": fixed_rollouts},
        per_device_train_batch_size=GLOBAL_BATCH // size // micro_batches,
        **settings,
    )
    if packed:
        trainer.cutting = replace(trainer.cutting, is_packed=True)
    return trainer


def train(policy, folder, resume=None, **settings):
    """Train and return the whole weights, the logs, and how the processes share the weights."""
    trainer = build(policy, folder, **settings)
    trainer.train(resume_from_checkpoint=resume)
    weights = trainer.accelerator.get_state_dict(trainer.model_wrapped)  # every process takes part
    steps = [log for log in trainer.state.log_history if "loss" in log]
    return {
        "weights": {name: weight.cpu().clone() for name, weight in (weights or {}).items()},
        "logs": [{k: v for k, v in log.items() if k.startswith(LOGGED)} for log in steps],
        "kind": trainer.accelerator.distributed_type.value,
        "size": trainer.accelerator.num_processes,
    }


def on_a_rank(environment, policy, folder, cases):
    """Train each case in this fork, with an environment, and save what the main process has."""
    os.environ.update(environment)
    torch.set_num_threads(1)
    if environment:
        shard_on_a_cpu()
    found = {name: train(policy, folder / name, **settings) for name, settings in cases.items()}
    if PartialState().is_main_process:
        torch.save(found, folder / "found.pt")
    leave()


def shard_on_a_cpu():
    """Have accelerate shard on a CPU, in this process alone: of itself it takes the settings of
    FSDP and DeepSpeed there and trains as plain DDP, since its AcceleratorState looks at them only
    where it has found a GPU."""
    init = AcceleratorState.__init__

    def init_sharded(self, *args, deepspeed_plugin=None, fsdp_plugin=None, **kwargs):
        init(self, *args, deepspeed_plugin=deepspeed_plugin, fsdp_plugin=fsdp_plugin, **kwargs)
        if self.distributed_type != DistributedType.MULTI_CPU:
            return
        if fsdp_plugin is not None:
            kind, self.fsdp_plugin = DistributedType.FSDP, fsdp_plugin
        elif deepspeed_plugin is not None:
            deepspeed_plugin.set_mixed_precision("no")
            deepspeed_plugin.select(_from_accelerator_state=True)
            kind, self.deepspeed_plugins = DistributedType.DEEPSPEED, deepspeed_plugin
        else:
            return
        self.distributed_type = PartialState._shared_state["distributed_type"] = kind

    AcceleratorState.__init__ = init_sharded
