"""Trains run after run with real vLLM, and writes down what each logged. Run by test_training.py,
on one process or two: train_worker.py RUNS.json OUTPUT
"""

import faulthandler
import json
import sys
from pathlib import Path

import torch
import trl.generation.vllm_generation as vllm_generation
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object
from harness import build_trainer, by_thirds, crc, free_port, logs, problems
from peft import LoraConfig
from vllm.distributed import cleanup_dist_env_and_memory

from trl_miner import MinerGRPOTrainer
from trl_miner.evaluation.in_training import EvaluationCallback

torch.set_num_threads(1)
NUM_GENERATIONS, NUM_PROMPTS = 8, 3  # one prompt all right, one half right, one all wrong


def every_other_right(prompts, completions, **kwargs):
    """By prompt as `harness.mixed_reward`, but without a coin: each step has its mixed prompt,
    whatever vLLM drew."""
    return by_thirds(prompts, [float(row % 2) for row in range(len(prompts))])


def by_text(prompts, completions, **kwargs):
    return [float(crc(completion) % 2) for completion in completions]


def one_engine_per_model(build):
    """vLLM starts in 10 seconds; TRL sends all weights before a run's first generation, whatever
    the engine held."""
    engines = {}

    def engine(model, **settings):
        if model not in engines:
            engines[model] = build(model=model, **settings)
        return engines[model]

    return engine


class Counting(MinerGRPOTrainer):
    """Notes the rows of each forward for log-probs that needs no gradient."""

    def __init__(self, *args, **kwargs):
        self.forwarded = []
        super().__init__(*args, **kwargs)

    def _get_per_token_logps_and_entropies(self, model, input_ids, *args, **kwargs):
        if not torch.is_grad_enabled():
            self.forwarded.append(len(input_ids))
        return super()._get_per_token_logps_and_entropies(model, input_ids, *args, **kwargs)


class SyncedOnce(Counting):
    """The control: after the first generation no weights are sent."""

    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        self.vllm_generation.sync_weights = lambda: None
        return loss


def train(name, model, folder, *, synced=True, lora=False, **settings):
    size = PartialState(cpu=True).num_processes
    port = broadcast_object_list([free_port()])[0]  # TRL closes a run's at the end of the process
    adapters = {"peft_config": LoraConfig(r=4, target_modules="all-linear")} if lora else {}
    trainer = build_trainer(
        model, folder / name, reward=every_other_right, cls=Counting if synced else SyncedOnce,
        more=adapters, max_steps=3, learning_rate=1e-2, num_generations=NUM_GENERATIONS,
        per_device_train_batch_size=NUM_PROMPTS * NUM_GENERATIONS // size, use_vllm=True,
        vllm_max_model_length=128, vllm_gpu_memory_utilization=0.1,
        ddp_find_unused_parameters=False, vllm_group_port=port, **settings,
    )  # fmt: skip
    trainer.train()
    steps = [log for log in logs(trainer) if "reward" in log]
    return {
        "processes": size,
        "steps": steps,
        "forwarded": gather_object([trainer.forwarded]),
        "held_out": held_out(trainer),
    }


def held_out(trainer):
    """Score 6 problems, 4 samples each, twice; transformers' `generate` is out of reach."""
    scoring = EvaluationCallback(trainer, problems(6), 4)
    trainer.model.generate, trainer.reward_funcs = None, [by_text]
    for moment in ("before", "step 1"):
        scoring.record(moment)
    return [scoring.moments[moment].num_correct for moment in ("before", "step 1")]


def main(runs, output):
    faulthandler.dump_traceback_later(500, exit=True)  # should it hang, say where
    vllm_generation.LLM = one_engine_per_model(vllm_generation.LLM)
    results = {run["name"]: train(folder=output, **run) for run in json.loads(runs.read_text())}
    if PartialState().is_main_process:
        (output / "result.json").write_text(json.dumps(results))
    # Left to the exit of the interpreter, gloo's threads can outlive what they use; vLLM has groups
    # of its own.
    cleanup_dist_env_and_memory()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
