"""Train on two processes whose data differ as much as they can, by settings drawn at random: every
process must make the same collectives in the same order.

Every forward of the model counts as one, as it is with weights in shards.
"""

import functools
import random
import time
import traceback

import torch
import torch.distributed as dist
from harness import OF_FORKS, config, logps_of, mixed_reward, problems

import trl_miner.methods.distributed
from trl_miner.methods.compose import estimators_of
from trl_miner.training import RunTrainer

SEVERAL = [False, False, True]
BUDGETS = [None, 45, 100, 2000]


def draw_settings(draw):
    """Return settings of two steps of 24 rollouts."""
    steps = draw.choice([1, 2, 4])
    settings = dict(
        advantage_estimator=draw.choice(["miner", "grpo", "ucas", f"{OF_FORKS}placebo"]),
        loss_type=draw.choice(["dapo", "grpo", "bnpo", "vespo"]),
        beta=draw.choice([0.0, 0.0, 0.1]),
        num_iterations=draw.choice([1, 1, 2]),
        per_device_train_batch_size=12 // steps,
        gradient_accumulation_steps=steps,
        steps_per_generation=draw.choice([steps, 2 * steps]),
        mask_truncated_completions=draw.choice(SEVERAL),
        compute_less=draw.choice([True, True, True, False]),
        log_token_credit=draw.choice([0, 10]),
        log_gradient_share=draw.choice([0, 1]),
    )
    for kind in ("all_right", "all_wrong"):
        if settings["advantage_estimator"] in ("grpo", "ucas"):
            settings[kind] = draw.choice([None, None, "none", *estimators_of(kind)])
    # which dynamic sampling would drop
    others = {settings.get("all_right"), settings.get("all_wrong")}
    if others <= ({"none", None} if settings["advantage_estimator"] == "grpo" else {"none"}):
        settings["dynamic_sampling"] = draw.choice([False, True])
    if settings["compute_less"]:
        settings["max_tokens_per_micro_batch"] = draw.choice(BUDGETS)
    if settings["advantage_estimator"] == "grpo":
        settings["policy_loss"] = draw.choice(["clip", "clip_cov", "bapo", "kl_cov"])
        if settings["policy_loss"] != "clip":
            settings |= dict(num_iterations=2, loss_type="dapo")
    if settings["steps_per_generation"] > steps:
        settings["per_device_train_batch_size"] = 6 // steps or 1
    return settings


class Unlike(RunTrainer):
    """Each process draws for itself how long its rollouts are, what they earn, and whether it has
    the sampler's log-probs."""

    def __init__(self, policy, args, draw):
        self.draw = draw
        super().__init__(policy, self.reward, args, problems(), rollout_func=self.roll)
        self.model.register_forward_pre_hook(lambda *_: dist.all_reduce(torch.zeros(7)))

    def roll(self, prompts, trainer):
        longest, tokenizer = self.draw.choice([1, 3, 30]), self.processing_class
        ids = [
            [self.draw.randrange(5, len(tokenizer)) for _ in range(self.draw.randint(1, longest))]
            for _ in prompts
        ]
        rolled = {
            "prompt_ids": [tokenizer(prompt)["input_ids"] for prompt in prompts],
            "completion_ids": ids,
        }
        logps = logps_of(self.model, rolled)
        logps = [[self.draw.choice([logp, logp, float("nan")]) for logp in row] for row in logps]
        rolled |= {"logprobs": self.draw.choice([None, logps])}
        # of an environment
        masks = [[self.draw.choice([0, self.draw.choice([0, 1])])] * len(row) for row in ids]
        return rolled | ({"env_mask": masks} if self.draw.random() < 0.4 else {})

    def reward(self, prompts, completions, **kwargs):
        kind = self.draw.choice(["all right", "all wrong", "mixed", "mixed", "unscorable"])
        if kind == "mixed":
            return mixed_reward(prompts, completions)
        return [{"all right": 1.0, "all wrong": 0.0, "unscorable": None}[kind]] * len(prompts)


def compare_collectives():
    """Before each collective compare what the processes are about to do. All raise where it
    differs."""
    names = (
        "all_reduce",
        "all_gather",
        "all_gather_into_tensor",
        "all_gather_single",
        "broadcast",
        "barrier",
    )
    names += ("all_gather_object", "broadcast_object_list")
    gather = dist.all_gather_object
    inside = False

    def compared(name, collective):
        @functools.wraps(collective)
        def call(*args, **kwargs):
            nonlocal inside
            if inside:  # one that is made of others
                return collective(*args, **kwargs)
            inside = True
            try:
                tensors = [tuple(x.shape) for x in args if isinstance(x, torch.Tensor)]
                callers = [frame.name for frame in traceback.extract_stack(limit=6)[:-1]]
                everywhere = [None] * dist.get_world_size()
                gather(everywhere, (name, tensors, callers))
                assert len({str(each[:2]) for each in everywhere}) == 1, everywhere
                return collective(*args, **kwargs)
            finally:
                inside = False

        return call

    for name in names:
        if hasattr(dist, name):
            setattr(dist, name, compared(name, getattr(dist, name)))
    trl_miner.methods.distributed._all_gather = compared(
        "all_gather", trl_miner.methods.distributed._all_gather
    )


def train_unlike(policy, folder, seeds):
    """Train once by each seed."""
    compare_collectives()
    for seed in seeds:
        settings, start = draw_settings(random.Random(seed)), time.time()
        print(f"seed {seed}: {settings}", flush=True)
        args = config(
            folder / str(seed),
            max_steps=2,
            max_completion_length=30,
            ddp_find_unused_parameters=False,
            **settings,
        )
        Unlike(policy, args, random.Random(seed * 2 + args.process_index)).train()
        print(f"seed {seed}: {time.time() - start:.1f} s", flush=True)
    dist.destroy_process_group()
