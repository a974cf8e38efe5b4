"""What an optimizer step of 2,048 rollouts of up to 8,192 tokens takes besides the model, by what it goes to.

    python tests/bench/around_the_step.py [--write] [--rollouts 2048] [--tokens 8192]

The trainer is whole, and its settings are those of recipes/Qwen3-4B-Base/miner.yaml: MINER, a KL term, micro-batches
of 4 rows, the sampler's log-probs with the rollouts, as vLLM's are. Lengths are log-normal with a mean of a quarter of
the longest, cut there; half of the prompts are all right. A function of each token stands for the model, and the
rollouts are made beforehand: neither is counted. Target: at most 2 % of the time of a model of 4 B on eight GPUs.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import machine, report, table
from transformers import TrainerCallback
from trl import GRPOTrainer

sys.path.append(str(Path(__file__).parents[1]))
from harness import build_policy, call_on_ranks

from trl_miner import MinerGRPOConfig, MinerGRPOTrainer
from trl_miner.data import arithmetic
from trl_miner.distributed import DistributedWorld
from trl_miner.rewards import math_reward
from trl_miner.trainer import trainer as trainer_module
from trl_miner.trainer.micro_batches import MicroBatchPlan
from trl_miner.trainer.prompt_log import PromptLog, PromptOutcomes
from trl_miner.trainer.run import RunState
from trl_miner.trainer.scoring import Forwards
from trl_miner.trainer.step import OptimizerStep
from trl_miner.trainer.token_credit import CreditRecorder
from trl_miner.trainer.token_means import TokenMeans

GENERATIONS, ROWS = 16, 4
PARAMETERS, GPUS, FLOPS, UTILISATION = 4e9, 8, 989e12, 0.4
NOT_COUNTED = ("the model", "the rollouts")
RECORDS, RECORDED = "token records, a tenth of a recorded step", 10  # every 10th step is recorded
LEGEND = """Seconds of a processor, of one thread, in one optimizer step: for one process, for the slower of two on
gloo, and for one process with an eighth of the rollouts, as each of eight has. (TRL) is what TRL's own trainer does
too. Arithmetic on tensors is included, which a GPU does where there is one. Shares are of the time that the model
takes: 6 x {:.0f} B parameters x {:,.0f} tokens / ({} H100 x 989 Tflop/s x MFU {}) = {:.1f} s, without attention and
generation."""


class Stopwatch:
    """Seconds of this process by section; those of a section within a section are the inner one's alone."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._open: list[str] = ["everything else"]
        self._whole = 0  # sections under way that keep what is within them
        self._since = time.process_time()

    def switch(self) -> None:
        now = time.process_time()
        self.seconds[self._open[-1]] += now - self._since
        self._since = now

    def watch(self, owner: Any, name: str, section: str, *, is_whole: bool = False) -> None:
        """Count a method to a section; `is_whole`: with all that it calls, except the model."""
        method: Callable[..., Any] = getattr(owner, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            if self._whole and section not in NOT_COUNTED:
                return method(*args, **kwargs)
            self.switch()
            self._open.append(section)
            self._whole += is_whole
            try:
                return method(*args, **kwargs)
            finally:
                self.switch()
                self._whole -= is_whole
                self._open.pop()

        setattr(owner, name, watched)


def watch_all(watch: Stopwatch, trainer: MinerGRPOTrainer) -> None:
    """Name the sections."""
    sections = (
        (GRPOTrainer, "_generate", "texts of the rollouts (TRL)", False),
        (GRPOTrainer, "_calculate_rewards", "reward functions", False),
        (GRPOTrainer, "_generate_and_score_completions", "tensors and logs of the batch (TRL)", False),
        (GRPOTrainer, "_prepare_inputs", "shuffling and splitting the batch (TRL)", False),
        (GRPOTrainer, "_compute_loss", "loss (TRL)", False),
        (trainer.accelerator, "backward", "loss, backward (TRL)", False),
        (trainer, "log", "logs (TRL)", True),
        (Forwards, "run", "scoring forwards: rows by length", False),
        (trainer_module, "estimate", "MINER", False),
        (MinerGRPOTrainer, "_estimate_advantages", "kinds of prompts, logs of the estimate", False),
        (CreditRecorder, "record", RECORDS, True),
        (trainer, "get_batch_samples", "drawing prompts (TRL)", True),
        (PromptOutcomes, "add", "prompt ledger", True),
        (PromptLog, "record", "prompt ledger", True),
        (OptimizerStep, "_make_plan", "planning the micro-batches", True),
        (MicroBatchPlan, "build", "moving rows into micro-batches", True),
        (TokenMeans, "over", "means of TRL's metrics", True),
        *((DistributedWorld, name, "sums and gathers", False) for name in ("gather", "sum")),
        *((trainer.accelerator, name, "sums and gathers", False) for name in ("gather", "reduce")),
        (trainer, "rollout_func", "the rollouts", False),
        (trainer, "trl_forward", "the model", False),
    )
    for owner, name, section, is_whole in sections:
        watch.watch(owner, name, section, is_whole=is_whole)


class OneStep(TrainerCallback):
    """Counts from the end of the first optimizer step to the end of the second."""

    def __init__(self, watch: Stopwatch) -> None:
        self._watch, self.seconds = watch, Counter[str]()

    def on_step_end(self, args: Any, state: Any, *rest: Any, **kwargs: Any) -> None:
        self._watch.switch()
        self.seconds = +self._watch.seconds
        self._watch.seconds.clear()


class Tokens(MinerGRPOTrainer):
    """Has a function of each token in the place of the model."""

    def trl_forward(
        self, model: Any, input_ids: Any, mask: Any, logits_to_keep: int, *args: Any, **kwargs: Any
    ) -> Any:
        scale = 1 + 0 * next(model.parameters()).flatten()[0]
        logps = logps_of(input_ids[:, -logits_to_keep:]) * scale
        return logps, -logps.detach(), None


def logps_of(ids: torch.Tensor) -> torch.Tensor:
    """Return log-probs of tokens that depend on nothing else."""
    return -((ids % 7) + 1) / 8


class Rollouts:
    """Answers of random tokens that end in a box; half of the prompts are all right, and every other rollout else."""

    def __init__(self, tokenizer: Any, tokens: int) -> None:
        self._tokenizer, self._tokens = tokenizer, tokens
        problems = arithmetic.load_dataset("train", size=1000)
        self._solutions = dict(zip(problems["prompt"], problems["solution"], strict=True))

    def __call__(self, prompts: list[str], trainer: Any) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(trainer.accelerator.process_index)
        shares = (torch.randn(len(prompts), generator=generator) - 0.5).exp() / 4  # of the longest
        lengths = (shares * self._tokens).int().clamp(32, self._tokens).tolist()
        letters = self._tokenizer("so 1 2 3 plus, then is ", add_special_tokens=False)["input_ids"]
        completions = []
        for row, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
            is_right = (row // GENERATIONS) % 2 == 0 or row % 2 == 0
            end = rf" The answer is \boxed{{{self._solutions[prompt] if is_right else 100}}}."
            end_ids = self._tokenizer(end, add_special_tokens=False)["input_ids"] + [self._tokenizer.eos_token_id]
            places = torch.randint(len(letters), (length - len(end_ids),), generator=generator).tolist()
            completions.append([letters[place] for place in places] + end_ids)
        return {
            "prompt_ids": self._tokenizer(prompts, add_special_tokens=False)["input_ids"],
            "completion_ids": completions,
            "logprobs": [logps_of(torch.tensor(ids)).tolist() for ids in completions],
        }


def measure(rollouts: int, tokens: int, folder: str, processes: int) -> None:
    """Train two steps, and write what the second took, and the tokens of a step, to `folder`."""
    torch.set_num_threads(1)
    args = MinerGRPOConfig(
        f"{folder}/run", max_steps=2, num_generations=GENERATIONS, per_device_train_batch_size=ROWS,
        gradient_accumulation_steps=rollouts // processes // ROWS, max_completion_length=tokens, beta=0.001, delta=3.0,
        use_bias_correction_kl=False, learning_rate=0.0, logging_steps=1, use_cpu=True, bf16=False, report_to="none",
        gradient_checkpointing=False, save_strategy="no", disable_tqdm=True, log_token_credit=1,
    )  # fmt: skip
    prompts = arithmetic.load_dataset("train", size=1000)
    made = Rollouts(arithmetic.build_tokenizer(), tokens)
    trainer = Tokens(f"{folder}/policy", math_reward, args, prompts, rollout_func=made)
    RunState.of(trainer).sampler_is_checked = True  # there is no model to compare with
    watch = Stopwatch()
    watch_all(watch, trainer)
    one_step = OneStep(watch)
    trainer.callback_handler.callbacks.insert(0, one_step)
    trainer.train()
    one_step.seconds[RECORDS] /= RECORDED
    for name in NOT_COUNTED:
        del one_step.seconds[name]
    found = [RunState.of(trainer).tokens / 2, one_step.seconds]
    Path(folder, f"{trainer.accelerator.process_index}.json").write_text(json.dumps(found))


def seconds(rollouts: int, tokens: int, processes: int) -> tuple[float, Counter[str]]:
    """Return the tokens of a step, and the seconds of the process that took longest."""
    with tempfile.TemporaryDirectory() as folder:
        build_policy(Path(folder) / "policy")
        call_on_ranks(processes, measure, rollouts, tokens, folder, processes, seconds=3600)
        found = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(processes)]
    return found[0][0], Counter(max((of_rank for _, of_rank in found), key=lambda of_rank: sum(of_rank.values())))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the table to tests/bench/results")
    parser.add_argument("--rollouts", type=int, default=2048, help="of all processes")
    parser.add_argument("--tokens", type=int, default=8192, help="of the longest rollout")
    options = parser.parse_args()
    torch.set_num_threads(1)
    cases = {
        f"one process, {options.rollouts:,} rollouts": (options.rollouts, 1),
        f"two processes, {options.rollouts // 2:,} each": (options.rollouts, 2),
        f"an eighth, {options.rollouts // GPUS:,} rollouts": (options.rollouts // GPUS, 1),
    }
    measured = {name: seconds(rollouts, options.tokens, processes) for name, (rollouts, processes) in cases.items()}
    num_tokens, first = next(iter(measured.values()))
    of_model = 6 * PARAMETERS * num_tokens / (GPUS * FLOPS * UTILISATION)
    columns = [found for _, found in measured.values()]
    rows = [[section, *(f"{found[section]:.3f}" for found in columns)] for section, _ in first.most_common()]
    ours = [sum(value for section, value in found.items() if "(TRL)" not in section) for found in columns]
    whole = [sum(found.values()) for found in columns]
    rows.append(["**all but TRL's**", *(f"{value:.3f}" for value in ours)])
    rows.append(["its share", *(f"{value / of_model:.1%}" for value in ours)])
    rows.append(["**in all**", *(f"{value:.3f}" for value in whole)])
    rows.append(["its share", *(f"{value / of_model:.1%}" for value in whole)])
    legend = LEGEND.format(PARAMETERS / 1e9, num_tokens, GPUS, UTILISATION, of_model)
    text = f"# Around the step\n\n{__doc__.splitlines()[0]}\n\n{machine()}\n"
    text += f"`python tests/bench/around_the_step.py --write`\n\n{legend}\n\n"
    report("around_the_step", text + table(["", *cases], rows))


if __name__ == "__main__":
    main()
