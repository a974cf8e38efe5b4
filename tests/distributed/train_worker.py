"""Train two steps by every method, on rollouts that depend on the prompt and the *global* row
alone.

MINER with the log-probs left to the trainer's own forward and with the sampler's, then every other
method.
"""

import json
from pathlib import Path

import torch.distributed as dist
from accelerate import PartialState
from accelerate.utils import gather_object
from harness import (
    AS_TRL,
    OF_FORKS,
    OWN_METRICS,
    config,
    crc,
    logps_of,
    metrics_of,
    mixed_reward,
    problems,
)

from trl_miner.trainer import round_sampling
from trl_miner.training import RunTrainer, token_records

GLOBAL_BATCH = 12
# In this order the first batch has a mixed prompt, which the off-policy cases train on alone.
PROBLEMS = problems().select(range(3, 48))


def rollouts(prompts, trainer, sampler=None):
    """As a `rollout_func`, with the log-probs of a sampler where there is one."""
    first = trainer.accelerator.process_index * len(prompts)
    tokenizer = trainer.processing_class
    completion_ids = [
        [
            5 + (crc(p) + 31 * (first + i) + 7 * j) % (len(tokenizer) - 5)
            for j in range(3 + (first + i) % 5)
        ]
        for i, p in enumerate(prompts)
    ]
    prompt_ids = [tokenizer(p)["input_ids"] for p in prompts]
    rolled = {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": None}
    if sampler is not None:
        rolled["logprobs"] = logps_of(sampler, rolled, trainer.temperature)
    return rolled


def sampled(prompts, trainer):
    return rollouts(prompts, trainer, trainer.model)


def compared_steps(trainer, marker="reward"):
    """Return what is the same on any number of processes in each log with the marker."""
    names = ("loss", "grad_norm", "reward", *OWN_METRICS)
    logs = [log for log in metrics_of(trainer) if marker in log]
    own = {"micro_batches/tokens"}  # of a process as much as of the run
    return [
        {name: log[name] for name in log if name.startswith(names) and name not in own}
        for log in logs
    ]


class Counting(RunTrainer):
    """Counts the all-right rows of this process, and the forwards it takes to score them."""

    def __init__(self, *args, **kwargs):
        self.ph_rows, self.ph_forwards, self.num_forwards = [], [], 0
        super().__init__(*args, **kwargs)
        self.forward_of_rows, self.forwards.of_rows = self.forwards.of_rows, self.count_forwards

    def count_forwards(self, batch, is_row_N, names):
        rows = len(batch["advantages"])
        first = self.accelerator.process_index * rows
        self.ph_rows.append(int(is_row_N[first : first + rows].sum()))
        before = self.num_forwards
        scores = self.forward_of_rows(batch, is_row_N, names)
        self.ph_forwards.append(self.num_forwards - before)
        return scores

    def trl_forward(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, **kwargs
    ):
        self.num_forwards += -(-len(input_ids) // (batch_size or len(input_ids)))
        return super().trl_forward(
            model, input_ids, attention_mask, logits_to_keep, batch_size, **kwargs
        )


def some_unscored(prompts, completions, **kwargs):
    """Leave a rollout in five without a reward, wherever it is."""
    rewards = mixed_reward(prompts, completions)
    return [
        None if crc(text) % 5 == 0 else reward
        for text, reward in zip(completions, rewards, strict=True)
    ]


def by_length(completions, **kwargs):
    return [0.01 * len(text) for text in completions]


def train(
    policy, folder, *, rollout_func=rollouts, micro_batches=1, rewards=mixed_reward, **settings
):
    settings |= dict(
        max_steps=2,
        log_completions=True,
        num_completions_to_print=0,
        ddp_find_unused_parameters=False,
    )
    micro_batch = GLOBAL_BATCH // config(folder).world_size // micro_batches
    args = config(
        folder,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=micro_batches,
        **settings,
    )
    trainer = Counting(policy, rewards, args, PROBLEMS, rollout_func=rollout_func)
    trainer.train()
    return {
        "num_processes": trainer.accelerator.num_processes,
        # sums over rows in another order: everything to six digits, but no more
        "steps": compared_steps(trainer),
        "weights": [p.double().square().sum().item() for p in trainer.model.parameters()],
        "logged_advantages": list(trainer._logs["advantages"]),
        "logged_completions": list(trainer._logs["completion"]),
        "ph_rows": gather_object([trainer.ph_rows]),
        "forwards": gather_object([trainer.ph_forwards]),
    }


# Off-policy from the second step on, with one micro-batch: which rows share one depends on TRL's
# shuffling.
OFF_POLICY = dict(num_iterations=3, learning_rate=3e-2, advantage_estimator="grpo")
# The others look at nothing that these do not: tests/test_solved_prompts.py has their numbers.
ALONE = ("grpo", "reinforce_pp")
CASES = {
    "forward": dict(micro_batches=3),
    "sampler": dict(micro_batches=3, rollout_func=sampled, temperature=0.7),
    "as_trl": dict(micro_batches=3, **AS_TRL),
    # more than micro-batches: one rollout each
    "budget_small": dict(micro_batches=3, max_tokens_per_micro_batch=25),
    # fewer: two micro-steps are idle
    "budget_large": dict(micro_batches=3, max_tokens_per_micro_batch=1000),
    "recorded": dict(micro_batches=3, log_token_credit=1, miner_gamma=1.0),
    "measured": dict(micro_batches=3, log_gradient_share=1, adam_epsilon=1e-3, learning_rate=1e-2),
    "dosed": dict(micro_batches=3, dose_share=0.2, all_wrong="rl_zvp"),
    "scored": dict(micro_batches=3, max_tokens_per_micro_batch=60, num_iterations=2, beta=0.1),
    "scored, ucas": dict(
        micro_batches=3, max_tokens_per_micro_batch=60, num_iterations=2, advantage_estimator="ucas"
    ),
    **{name: dict(advantage_estimator=name) for name in ALONE},
    "unscored": dict(
        rewards=[lambda completions, **kwargs: [1.0] * len(completions), some_unscored]
    ),
    "gated": dict(
        rewards=[mixed_reward, by_length],
        correct_reward_func="mixed_reward",
        gate_on_correctness=True,
    ),
    "ucas+miner": dict(advantage_estimator="ucas", all_right="miner"),
    "each_kind": dict(
        advantage_estimator=f"{OF_FORKS}unlikeliness",
        all_right=f"{OF_FORKS}placebo",
        all_wrong="rl_zvp",
    ),
    "clip_cov": dict(
        OFF_POLICY, policy_loss="clip_cov", policy_loss_kwargs=dict(ratio=1.0, low=0.05)
    ),
    "bapo": dict(OFF_POLICY, policy_loss="bapo", policy_loss_kwargs=dict(target=2.0)),
    "dynamic_sampling": dict(advantage_estimator="grpo", dynamic_sampling=True),
}


def train_all(policy, output, names=tuple(CASES)):
    """Write what each case came to, by name, to `result.json`."""
    token_records.MOST_ROLLOUTS = 8  # of 12: some prompts of the batch
    round_sampling.MAX_ROUNDS = 2
    results = {name: train(policy, Path(output, name), **CASES[name]) for name in names}
    if PartialState().is_main_process:
        Path(output, "result.json").write_text(json.dumps(results))
    if dist.is_initialized():
        dist.destroy_process_group()
