"""Train three steps on rollouts that depend on the prompt and the *global* row alone, and write down what came out.

Once with the log-probs left to the trainer's own forward, once with the sampler's.
Run by test_distributed.py: train_worker.py POLICY OUTPUT
"""

import json
import sys
from functools import partial
from pathlib import Path

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from harness import config, crc, mixed_reward, problems

from trl_miner import MinerGRPOTrainer

torch.set_num_threads(1)
policy, output = sys.argv[1:]
GLOBAL_BATCH = 12


def rollouts(prompts, trainer, source):
    first = trainer.accelerator.process_index * len(prompts)
    tokenizer = trainer.processing_class
    completion_ids = [
        [5 + (crc(p) + 31 * (first + i) + 7 * j) % (len(tokenizer) - 5) for j in range(3 + (first + i) % 5)]
        for i, p in enumerate(prompts)
    ]
    logprobs = [[-0.5 - (first + i) % 3 for _ in ids] for i, ids in enumerate(completion_ids)]
    return {
        "prompt_ids": [tokenizer(p)["input_ids"] for p in prompts],
        "completion_ids": completion_ids,
        "logprobs": logprobs if source == "sampler" else None,
    }


class Counting(MinerGRPOTrainer):
    """Counts the all-right rows of this process, and the forwards it takes to score them."""

    def __init__(self, *args, **kwargs):
        self.ph_rows, self.forwards = [], []
        super().__init__(*args, **kwargs)

    def _forward_rows(self, output, is_row_N, names):
        rows = len(output["advantages"])
        first = self.accelerator.process_index * rows
        self.ph_rows.append(int(is_row_N[first : first + rows].sum()))
        return super()._forward_rows(output, is_row_N, names)

    def _get_per_token_logps_and_entropies(self, model, input_ids, *args, **kwargs):
        if not torch.is_grad_enabled():
            self.forwards.append(-(-len(input_ids) // kwargs["batch_size"]))
        return super()._get_per_token_logps_and_entropies(model, input_ids, *args, **kwargs)


def train(source):
    settings = dict(max_steps=3, log_completions=True, num_completions_to_print=0, ddp_find_unused_parameters=False)
    micro_batch = GLOBAL_BATCH // config(output).world_size // 3
    args = config(output, per_device_train_batch_size=micro_batch, gradient_accumulation_steps=3, **settings)
    rollout_func = partial(rollouts, source=source)
    trainer = Counting(policy, mixed_reward, args, problems(), rollout_func=rollout_func)
    trainer.train()
    names = ("groups/ph", "rollouts/recovered", "miner/tau_ref", "miner/tau_pos", "miner/scale", "loss", "grad_norm")
    return {
        "num_processes": trainer.accelerator.num_processes,
        "steps": [{n: log[n] for n in names if n in log} for log in trainer.state.log_history if "reward" in log],
        "weights": [p.double().square().sum().item() for p in trainer.model.parameters()],
        "logged_advantages": list(trainer._logs["advantages"]),
        "ph_rows": gather_object([trainer.ph_rows]),
        "forwards": gather_object([trainer.forwards]),
    }


results = {source: train(source) for source in ("forward", "sampler")}
if PartialState().is_main_process:
    Path(output, "result.json").write_text(json.dumps(results))
