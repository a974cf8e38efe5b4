"""The parts of run.sh, each in a process of its own with a limit of time, and their table."""

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from datasets import Dataset
from harness import build_tokenizer
from transformers import AutoModelForCausalLM, Qwen3Config
from trl import GRPOConfig, GRPOTrainer

from trl_miner import MinerGRPOConfig, MinerGRPOTrainer

OUT = Path(os.environ.get("OUT") or ".gpu")
# config.json of Qwen/Qwen3-0.6B-Base, and what a CPU can do
LARGE = dict(
    hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
    num_key_value_heads=8, head_dim=128, vocab_size=151936, tie_word_embeddings=True,
)  # fmt: skip
TINY = dict(
    hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=32, vocab_size=512,
)  # fmt: skip
# What we expected before a GPU had run it: by arithmetic, or from a CPU.
PREDICTED = {
    "step": "of TRL's seconds padded: GRPO 0.35, MINER 0.30; with flash attention less than padded",
    "recipe": "its scores and rewards as on a CPU; seconds of a step",
    "probe": "its table, as on a CPU",
    "server": "log-probs of vLLM and of the training within 0.05 in bfloat16, after every update",
}
SECONDS = "500"  # of a part, at most


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dry", action="store_true", help="tiny, on a CPU")
    parser.add_argument("--only", nargs="+", default=[*PREDICTED], choices=PREDICTED)
    parser.add_argument("--recipe", default="arithmetic/quick", help="whose first steps are made")
    args = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    gpus = [torch.cuda.get_device_name(place) for place in range(torch.cuda.device_count())]
    rows = [
        f"{gpus}, torch {torch.__version__}",
        "",
        "| Part | Predicted | Found |",
        "| - | - | - |",
    ]
    for name in args.only:
        print(f"{name} ...", flush=True)
        lines = why_not(name, len(gpus), args.dry) or run(name, args).replace("|", "·")
        rows.append(f"| {name} | {PREDICTED[name]} | {lines} |")
        (OUT / "table.md").write_text("\n".join(rows) + "\n")
    print(*rows, sep="\n")
    return int(any("FAILED" in row for row in rows))


def why_not(name, gpus, dry):
    """Return what a part lacks here; empty: nothing."""
    if name == "server" and (gpus < 2 or not importlib.util.find_spec("vllm")):
        return "skipped: it needs two GPUs and vLLM"
    return "" if gpus or dry else "skipped: no GPU"


def run(name, args):
    """Run a part, and return what it found."""
    start, log = time.monotonic(), OUT / f"{name}.log"
    with tempfile.TemporaryDirectory() as folder, open(log, "w") as out:
        command = ["timeout", SECONDS, sys.executable, *words_of(name, args, folder)]
        code = subprocess.run(command, stdout=out, stderr=out).returncode
        state = Path(folder, "run", "trainer_state.json")
        history = json.loads(state.read_text())["log_history"] if state.is_file() else []
    lines = of_log(history) if history else log.read_text().splitlines()
    if name == "step" and not code:
        lines = [line for line in lines if "s a step" in line]
    ended = f"FAILED with code {code}" if code else "done"
    return "<br>".join([f"{ended} in {time.monotonic() - start:.0f} s", *lines[-12:]])


def words_of(name, args, folder):
    """Return the words of a part's command, which may write into a folder."""
    device = "--use_cpu true --bf16 false" if args.dry else "--use_cpu false --bf16 true"
    if name == "step":
        return ["-c", f"import kit; kit.measure_steps({args.dry})"]
    if name == "probe":
        few = "--prompts 4 --problems 4 --samples 4" if args.dry else ""
        return f"-m trl_miner.cli probe arithmetic/quick {device} {few}".split()
    words = f"-m trl_miner.cli launch {args.recipe} --output_dir {folder}/run {device}".split()
    words += f"--max_steps {2 if args.dry else 20} --save_strategy no --logging_steps 1".split()
    if name == "server":
        for each in model_of(args.dry):
            each.save_pretrained(f"{folder}/model")
        words += f"--model {folder}/model --held_out 0 --use_vllm true --vllm_mode server".split()
        words += "--vllm_max_model_length 256 --vllm_gpu_memory_utilization 0.3".split()
    return words


def of_log(history):
    """Return what a training has logged, in a few lines."""
    steps = [log for log in history if "reward" in log]
    lines = [f"reward {steps[0]['reward']:.3f} to {steps[-1]['reward']:.3f} in {len(steps)} steps"]
    lines.append(f"{statistics.median(log['step_time'] for log in steps):.2f} s a step")
    for name in ("eval_pass@1", "sampling/sampling_logp_difference/max"):
        if found := [f"{log[name]:.3g}" for log in history if name in log]:
            lines.append(f"{name}: {', '.join(found)}")
    return lines


# A step against TRL's, on given completions.


def model_of(dry, attention="sdpa"):
    """Return a model with random weights, and a tokenizer."""
    torch.manual_seed(0)
    config = Qwen3Config(**(TINY if dry else LARGE), pad_token_id=0, eos_token_id=1)
    kind = torch.float32 if dry else torch.bfloat16
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=kind)
    return model, build_tokenizer()


def measure_steps(dry):
    """Print the seconds of a step and its memory: TRL's, and ours with GRPO and MINER, padded and
    without padding."""
    for kernel in ["sdpa"] if dry else ["sdpa", "kernels-community/flash-attn2"]:
        base = step(dry, kernel, GRPOTrainer, GRPOConfig)
        print(f"TRL, {kernel}: {base[0]:.3f} s a step, {base[1]:.1f} GiB", flush=True)
        for method in ("grpo", "miner"):
            own = step(dry, kernel, MinerGRPOTrainer, MinerGRPOConfig, advantage_estimator=method)
            print(f"{method}, {kernel}: {own[0]:.3f} s a step, {own[0] / base[0]:.2f} of TRL's,"
                  f" {own[1]:.1f} GiB", flush=True)  # fmt: skip


def step(dry, attention, trainer_class, config_class, **more):
    """Return the median seconds of a step on the same completions, and the GiB at its peak."""
    prompts, group, longest = (2, 4, 24) if dry else (8, 8, 2048)
    model, tokenizer = model_of(dry, attention)

    def rollouts(asked, trainer):
        torch.manual_seed(1)  # a heavy tail, with a mean of about a quarter of the longest
        lengths = (torch.randn(len(asked)).exp() * longest / 6.6).clamp(1, longest).int().tolist()
        return {
            "prompt_ids": [[10, 11, 12] for _ in asked],
            "completion_ids": [torch.randint(10, 100, (length,)).tolist() for length in lengths],
            "logprobs": [(-torch.rand(length)).tolist() for length in lengths],
        }

    def half_all_right(prompts, completions, **kwargs):
        return [float(int(prompt) % 2 or row % 2) for row, prompt in enumerate(prompts)]

    with tempfile.TemporaryDirectory() as folder:
        args = config_class(
            folder, max_steps=4, per_device_train_batch_size=group, num_generations=group,
            gradient_accumulation_steps=prompts, max_completion_length=longest, use_cpu=dry,
            bf16=not dry, gradient_checkpointing=not dry, logging_steps=1, save_strategy="no",
            report_to="none", disable_tqdm=True, log_level="error", **more,
        )  # fmt: skip
        data = Dataset.from_dict({"prompt": [str(number) for number in range(prompts * 4)]})
        trainer = trainer_class(
            model, half_all_right, args, data, processing_class=tokenizer, rollout_func=rollouts
        )
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        trainer.train()
    times = [log["step_time"] for log in trainer.state.log_history if "step_time" in log]
    # the first step prepares kernels
    return statistics.median(times[1:]), torch.cuda.max_memory_allocated() / 2**30


if __name__ == "__main__":
    sys.exit(main())
