"""Trains run after run with real vLLM, and writes down what each logged. Run by test_training.py,
on one process or two: train_worker.py RUNS.json OUTPUT
"""

import faulthandler
import json
import sys
from functools import partial
from pathlib import Path

import torch
import trl.generation.vllm_generation as vllm_generation
from accelerate import PartialState
from accelerate.utils import gather_object
from harness import Recording, by_thirds, config, metrics_of, problems
from peft import LoraConfig
from transformers import BitsAndBytesConfig
from vllm.distributed import cleanup_dist_env_and_memory

from trl_miner.evaluation.in_training import EvaluationCallback

torch.set_num_threads(1)
NUM_GENERATIONS, NUM_PROMPTS = 8, 3  # one prompt all right, one half right, one all wrong


def every_other_right(prompts, completions, **kwargs):
    """By prompt as `harness.mixed_reward`, but without a coin: each step has its mixed prompt,
    whatever vLLM drew."""
    return by_thirds(prompts, [float(row % 2) for row in range(len(prompts))])


def one_engine_per_model(build):
    """vLLM starts in 10 seconds; TRL sends all weights before a run's first generation, whatever
    the engine held."""
    engines = {}

    def engine(model, **settings):
        if model not in engines:
            engines[model] = build(model=model, **settings)
        return engines[model]

    return engine


class SyncedOnce(Recording):
    """The control: after the first generation no weights are sent."""

    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        self.vllm_generation.sync_weights = lambda: None
        return loss


def train(name, model, folder, *, synced=True, lora=False, bits=None, **settings):
    num_processes = config(folder).world_size
    args = config(
        folder / name,
        max_steps=3,
        learning_rate=1e-2,
        per_device_train_batch_size=NUM_PROMPTS * NUM_GENERATIONS // num_processes,
        num_generations=NUM_GENERATIONS,
        use_vllm=True,
        vllm_max_model_length=128,
        vllm_gpu_memory_utilization=0.1,
        ddp_find_unused_parameters=False,
        **settings,
    )
    adapters = {"peft_config": LoraConfig(r=4, target_modules="all-linear")} if lora else {}
    if bits:
        adapters["quantization_config"] = BitsAndBytesConfig(**{f"load_in_{bits}bit": True})
    trainer = (Recording if synced else SyncedOnce)(
        model, every_other_right, args, problems(48), **adapters
    )
    trainer.train()
    forwarded = gather_object([trainer.forwarded])
    return {
        "num_processes": trainer.accelerator.num_processes,
        "steps": [log for log in metrics_of(trainer) if "reward" in log],
        "forwarded": forwarded,
        "held_out": [] if bits else held_out(trainer),
    }


def held_out(trainer):
    """Return held-out samples of two problems, four each: twice by their seeds, then by others."""
    scoring = EvaluationCallback(trainer, problems(2), 4, reward_func=every_other_right)
    rows, found = [row for row in scoring.problems for _ in range(4)], []
    share = len(rows) // trainer.accelerator.num_processes
    mine = slice(
        trainer.accelerator.process_index * share, (trainer.accelerator.process_index + 1) * share
    )
    generate, trainer.model.generate = trainer.model.generate, None  # transformers' is not called
    for first in (0, 0, 100):
        seeds = [*range(first, first + len(rows))]
        _, ids, _ = trainer.sample_held_out(rows[mine], 4, 0, partial(scoring.sample, seeds[mine]))
        found.append(gather_object(ids))
    trainer.model.generate = generate
    return found


def main(runs, output):
    # it takes 60 seconds; should it hang, say where
    faulthandler.dump_traceback_later(400, exit=True)
    vllm_generation.LLM = one_engine_per_model(vllm_generation.LLM)
    results = {run["name"]: train(folder=output, **run) for run in json.loads(runs.read_text())}
    if PartialState().is_main_process:
        (output / "result.json").write_text(json.dumps(results))
    # Left to the exit of the interpreter, gloo's threads can outlive what they use; vLLM has groups
    # of its own.
    cleanup_dist_env_and_memory()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
