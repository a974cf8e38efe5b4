"""How long a training step takes with MinerGRPOTrainer, as a share of what it takes with TRL's
GRPOTrainer.

    python tests/bench/step.py [--write] [--pairs 20] [--tables lengths kl ...]
    python tests/bench/step.py --gpu [--write] [--pairs 6] [--tables lengths method kl gradient]

All trainers of a table row live in one process and take turns, another one first in each round.
They start from the same weights, learn at rate 0, and handle the same rollouts: random tokens.
A step is all training_step calls of an optimizer step and the optimizer.step() after them, less the
generation. On a CPU its time is the processor's, which other work on the machine hardly moves. Peak
memory is that of the process on a CPU; on a GPU, what the other trainers hold is left out.
--gpu is the size of Qwen3-0.6B with random weights, in bf16 with gradient checkpointing, up to 2048
tokens.
"""

import argparse
import ctypes
import gc
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from common import AS_TRL, machine, memory_mib, promise, quartiles, report, reset_peak_memory, table
from datasets import Dataset
from peft import LoraConfig
from transformers import Qwen3Config, Qwen3ForCausalLM, set_seed
from trl import GRPOConfig, GRPOTrainer

from trl_miner import MinerGRPOConfig, MinerGRPOTrainer
from trl_miner.data import arithmetic
from trl_miner.trainer.sampler_check import SamplerCheck

SamplerCheck.check = lambda *_: None  # the log-probs that are given are nobody's
# config.json of Qwen/Qwen3-0.6B-Base
LARGE = dict(
    hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8,
    head_dim=128, vocab_size=151936, tie_word_embeddings=True,
)  # fmt: skip
TINY = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, vocab_size=512)
SMALL = dict(hidden_size=256, intermediate_size=768, num_hidden_layers=4, vocab_size=512)
SMALL |= dict(num_attention_heads=4, num_key_value_heads=2, head_dim=64)
OF_KL = dict(num_hidden_layers=2)  # 1.8 M parameters, on a CPU
ON_A_CPU, ON_A_GPU = ("lengths", "kl"), ("lengths", "method", "kl", "gradient")  # the tables
RATIOS: dict[str, float] = {}  # of GRPO's steps to TRL's
TARGETS = {"heavy tail": 0.35, "uniform": 0.6, "constant": 1.01}  # of them, on a CPU
WARM_UP = 10**6  # a seed that no round has

LENGTHS_TEXT = """## Lengths\n
{} pairs a row. Heavy tail: log-normal (sigma 1) with a mean of a quarter of the longest, cut there; uniform: from 1
on; constant: all the longest. With GRPO every group is mixed, and no rollout is left out. With MINER half of the
groups are all right, as for TRL, which computes the same whatever they are. Targets on a CPU: 0.35, 0.60, 1.01.
"""
KL_TEXT = """## A KL penalty\n
{} pairs a row, {}heavy tail, beta 0.001, half of the groups all right. The forward of the reference is
part of the step, and with MINER its own forward.
"""
METHOD_TEXT = """## The method alone\n
{} pairs a row, with compute_less: false, all rollouts half as long as the longest above, half of the groups all
right. Own forward: no old log-probs are there, so MINER forwards the all-right rollouts; given: the sampler's are
there, as with vLLM.
"""
GRADIENT_TEXT = """## The same gradient\n
The distance between the gradients of a step and TRL's, as a share of the length of TRL's; heavy tail up to a quarter
of the longest above, GRPO, all groups mixed. TRL itself is also computed in micro-batches of half the rows, and of
four times the rows: what rounding does to a gradient when the same sums are taken in another order.
"""


@dataclass(frozen=True)
class Case:
    """The task: `rows` are those of a micro-batch, `steps` the optimizer steps on one generation
    batch."""

    size: dict[str, int]
    cap: int
    gpu: bool
    lengths: str = "heavy tail"
    rows: int = 8
    accumulation: int = 8
    generations: int = 8
    steps: int = 1
    lora: bool = False
    logps: bool = False  # the sampler's
    bf16: bool = True  # on a GPU


class Variant(NamedTuple):
    """A trainer and its settings; `all_right` is the share of groups without a wrong rollout."""

    name: str
    settings: dict[str, Any] = {}
    all_right: float = 0.5


TRL = "TRL"
DEFAULT = Variant("MINER")
MIXED = Variant("GRPO", {"advantage_estimator": "grpo"}, all_right=0.0)


class Turn:
    """One trainer, stepped by hand."""

    def __init__(self, case: Case, variant: Variant, folder: str):
        self.case, self.variant, self.seed, self.generating = case, variant, 0, 0.0
        self.clock = time.perf_counter if case.gpu else time.process_time
        self.held = 0  # bytes on the GPU from one step to the next
        is_trl = variant.name.startswith(TRL)
        config_cls, cls = (
            (GRPOConfig, GRPOTrainer) if is_trl else (MinerGRPOConfig, MinerGRPOTrainer)
        )
        dtype = torch.bfloat16 if case.gpu and case.bf16 else torch.float32
        args = config_cls(
            output_dir=folder, learning_rate=0.0, num_generations=case.generations, max_completion_length=case.cap,
            per_device_train_batch_size=case.rows, gradient_accumulation_steps=case.accumulation, report_to="none",
            steps_per_generation=case.accumulation * case.steps, save_strategy="no", logging_steps=1000,
            bf16=dtype == torch.bfloat16, use_cpu=not case.gpu, disable_tqdm=True,
            **{"gradient_checkpointing": case.gpu} | variant.settings,
        )  # fmt: skip
        torch.manual_seed(0)
        with torch.device("cuda" if case.gpu else "cpu"):
            model = Qwen3ForCausalLM(Qwen3Config(**case.size, pad_token_id=0, eos_token_id=1)).to(
                dtype
            )
        if "beta" in variant.settings:  # the reference is loaded from where the policy came from
            model.save_pretrained(f"{folder}/{variant.name}")
            model = Qwen3ForCausalLM.from_pretrained(f"{folder}/{variant.name}", dtype=dtype)
        num_prompts = case.rows * case.accumulation * case.steps // case.generations
        self.prompts = arithmetic.load_dataset("train", size=num_prompts)["prompt"]
        self.trainer = cls(
            model, self.reward, args,
            Dataset.from_dict({"prompt": self.prompts}), processing_class=arithmetic.build_tokenizer(),
            rollout_func=self.rollouts,
            peft_config=LoraConfig(target_modules="all-linear") if case.lora else None,
        )  # fmt: skip
        self.trainer.create_optimizer()
        if self.trainer.args.gradient_checkpointing:  # which train() does
            self.trainer.model.gradient_checkpointing_enable(
                self.trainer.args.gradient_checkpointing_kwargs
            )
        self.trainer.current_gradient_accumulation_steps = case.accumulation
        self.generate, self.trainer.rollout_func = self.trainer.rollout_func, self.timed_generate

    def timed_generate(self, *args: Any) -> Any:
        start = self.clock()
        result = self.generate(*args)
        self.generating += self.clock() - start
        return result

    def rollouts(self, prompts: list[str], trainer: Any) -> dict[str, Any]:
        """Random tokens, the same for every trainer."""
        case, generator = self.case, torch.Generator().manual_seed(self.seed)

        def tokens(lengths: list[int]) -> list[list[int]]:
            ids = torch.randint(2, case.size["vocab_size"], (sum(lengths),), generator=generator)
            return [row.tolist() for row in ids.split(lengths)]

        normal = torch.randn(len(prompts), generator=generator)
        shares = {"heavy tail": (normal - 0.5).exp() / 4, "uniform": torch.special.ndtr(normal)}
        share = shares.get(case.lengths, torch.ones_like(normal))  # of the cap
        prompt_lengths = torch.randint(
            4, 33, (len(prompts) // case.generations,), generator=generator
        ).tolist()
        completion_ids = tokens((share * case.cap).ceil().int().clamp(1, case.cap).tolist())
        return {
            "prompt_ids": [ids for ids in tokens(prompt_lengths) for _ in range(case.generations)],
            "completion_ids": completion_ids,
            "logprobs": [[-1.0] * len(ids) for ids in completion_ids] if case.logps else None,
        }

    def reward(self, prompts: list[str], **kwargs: Any) -> list[float]:
        """The first groups all right, as many as the variant wants; in the others, every other
        rollout."""
        num_groups = len(prompts) // self.case.generations
        num_right = round(self.variant.all_right * num_groups) * self.case.generations
        return [1.0 if row < num_right else float(row % 2) for row in range(len(prompts))]

    def watch(self) -> None:
        """Called where the gradient of a step is whole."""

    def run(self, seed: int) -> dict[str, float]:
        """One generation batch and the optimizer steps on it: seconds per step, and memory at the
        peak."""
        case, trainer = self.case, self.trainer
        batch = [{"prompt": prompt} for prompt in self.prompts for _ in range(case.generations)]
        set_seed(seed)
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # what the trainer before has freed is not this one's
        reset_peak_memory()
        if case.gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        others = torch.cuda.memory_allocated() - self.held
        self.seed, self.generating, start = seed, 0.0, self.clock()
        trainer.model.train()
        for micro_step in range(1, case.accumulation * case.steps + 1):
            is_last = micro_step % case.accumulation == 0
            trainer.accelerator.gradient_state._set_sync_gradients(is_last)
            trainer.training_step(trainer.model, batch, None)
            if is_last:
                self.watch()
                trainer.optimizer.step()
                trainer.model.zero_grad()
                trainer.state.global_step += 1
        if case.gpu:
            torch.cuda.synchronize()
        seconds = self.clock() - start
        peak = torch.cuda.max_memory_allocated() - others if case.gpu else memory_mib("VmHWM")
        return {"training": (seconds - self.generating) / case.steps, "peak": peak}


class Comparison:
    """TRL and the variants on the same rollouts, in rotating order."""

    def __init__(
        self,
        case: Case,
        variants: list[Variant],
        rounds: int,
        trl: dict[str, Any] | None = None,
    ):
        turns: list[Turn] = []
        with tempfile.TemporaryDirectory() as folder:
            for variant in (Variant(TRL, trl or {}, variants[-1].all_right), *variants):
                before = torch.cuda.memory_allocated()
                turns.append(Turn(case, variant, folder))
                turns[-1].run(WARM_UP)
                turns[-1].held = torch.cuda.memory_allocated() - before
            self.taken: dict[str, list[dict[str, float]]] = {
                turn.variant.name: [] for turn in turns
            }
            for seed in range(rounds):
                first = seed % len(turns)
                for turn in turns[first:] + turns[:first]:
                    self.taken[turn.variant.name].append(turn.run(seed))
                if len({turn.trainer.state.num_input_tokens_seen for turn in turns}) > 1:
                    raise RuntimeError(
                        f"The trainers did not handle the same rollouts in round {seed} of {case}."
                    )
        del turns, turn  # the next comparison wants the memory
        gc.collect()
        torch.cuda.empty_cache()
        self.seconds = f"{statistics.median(taken['training'] for taken in self.taken[TRL]):.2f}"
        print(
            case.lengths,
            "TRL",
            self.seconds,
            *map(self.ratio, variants),
            file=sys.stderr,
            flush=True,
        )

    def quartiles(self, variant: Variant, what: str = "training") -> tuple[float, float, float]:
        pairs = zip(self.taken[variant.name], self.taken[TRL], strict=True)
        return quartiles([own[what] / other[what] for own, other in pairs])

    def ratio(self, variant: Variant, what: str = "training") -> str:
        return "{1:.3f} ({0:.3f} to {2:.3f})".format(*self.quartiles(variant, what))

    def peak(self, variant: Variant) -> str:
        return f"{self.quartiles(variant, 'peak')[1]:.3f}"


def lengths_table(case: Case, rounds: int) -> str:
    rows, header = [], ["lengths", "TRL, s"]
    for variant in (MIXED, DEFAULT):
        header += [variant.name, "its peak memory"]
    for lengths in ("heavy tail", "uniform", "constant"):
        found = Comparison(replace(case, lengths=lengths), [MIXED, DEFAULT], rounds)
        rows.append([lengths, found.seconds])
        for variant in (MIXED, DEFAULT):
            rows[-1] += [found.ratio(variant), found.peak(variant)]
        RATIOS[lengths] = float(found.ratio(MIXED).split()[0])
    return f"{LENGTHS_TEXT.format(rounds)}\n" + table(header, rows)


def method_table(case: Case, rounds: int) -> str:
    rows, variant = [], Variant("MINER", AS_TRL)
    for name, has_logps in (("own forward", False), ("given", True)):
        found = Comparison(
            replace(case, cap=case.cap // 2, lengths="constant", logps=has_logps), [variant], rounds
        )
        rows.append([name, found.seconds, found.ratio(variant), found.peak(variant)])
    return f"{METHOD_TEXT.format(rounds)}\n" + table(
        ["old log-probs", "TRL, s", "ratio", "peak memory"], rows
    )


def kl_table(case: Case, rounds: int) -> str:
    rows, beta = [], {"beta": 0.001}
    size, shown = (case.size, "") if case.gpu else (case.size | OF_KL, "1.8 M parameters, ")
    variants = [Variant(name, beta | {"advantage_estimator": name}) for name in ("miner", "grpo")]
    for name, lora in (("all weights", False), ("LoRA", True)):
        found = Comparison(replace(case, size=size, lora=lora), variants, rounds, beta)
        for variant in variants:
            rows.append(
                [name, found.seconds, variant.name, found.ratio(variant), found.peak(variant)]
            )
    header = ["trained", "TRL, s", "advantage_estimator", "ratio", "peak memory"]
    return f"{KL_TEXT.format(rounds, shown)}\n" + table(header, rows)


class Gradient(Turn):
    """Keeps the gradient of its step."""

    def watch(self) -> None:
        self.found = torch.cat([p.grad.flatten().float() for p in self.trainer.model.parameters()])


def gradient_table(case: Case, rounds: int) -> str:
    turns = ((Variant(TRL), 1.0), (MIXED, 1.0), (Variant(TRL), 0.5), (Variant(TRL), 4.0))
    rows = []
    for bf16 in (True, False) if case.gpu else (False,):
        shorter = replace(case, cap=case.cap // 4, bf16=bf16)
        expected, *found = [gradient(shorter, variant, share) for variant, share in turns]
        distances = [f"{(one - expected).norm() / expected.norm():.1e}" for one in found]
        rows.append(["bfloat16" if bf16 else "float32", *distances])
        print(*rows[-1], file=sys.stderr, flush=True)
    return f"{GRADIENT_TEXT}\n" + table(["numbers", "ours", "TRL in halves", "TRL by four"], rows)


def gradient(case: Case, variant: Variant, share: float) -> torch.Tensor:
    """Return the gradient of a step, with micro-batches of so many times the rows."""
    size = round(case.rows * share)
    case = replace(case, rows=size, accumulation=case.rows * case.accumulation // size)
    with tempfile.TemporaryDirectory() as folder:
        turn = Gradient(case, variant._replace(all_right=0.0), folder)
        turn.run(0)
    found = turn.found
    del turn
    gc.collect()
    torch.cuda.empty_cache()
    return found


def main() -> None:
    builders = {"lengths": lengths_table, "kl": kl_table}
    builders |= {"method": method_table, "gradient": gradient_table}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--write", action="store_true", help="write the tables to tests/bench/results"
    )
    parser.add_argument(
        "--pairs", type=int, help="pairs of steps for each row: 20, or 6 with --gpu"
    )
    parser.add_argument(
        "--gpu", "--gpu-size", action="store_true", help="the size of Qwen3-0.6B, on a GPU"
    )
    parser.add_argument(
        "--tiny", action="store_true", help="a size that a processor can try this script with"
    )
    parser.add_argument("--most-tokens", type=int, help="of a completion: 512, or 2048 with --gpu")
    parser.add_argument(
        "--tables", nargs="+", choices=builders, help="some alone, in a file of their own"
    )
    options = parser.parse_args()
    pairs = options.pairs or (6 if options.gpu else 20)
    if pairs < 2:
        parser.error("quartiles need at least two pairs.")
    gpu = options.gpu and torch.cuda.is_available()
    if options.gpu and not (gpu or options.tiny):
        sys.exit("--gpu needs a GPU: none is here. --tiny tries the script without one.")
    if not gpu:
        # two threads that wait for each other say more about the machine than about the step
        torch.set_num_threads(1)
    size, cap = (LARGE, 2048) if options.gpu else (SMALL, 512)
    case = (
        Case(size | TINY, 64, gpu) if options.tiny else Case(size, options.most_tokens or cap, gpu)
    )

    text = f"# Time of a training step\n\n{__doc__.splitlines()[0]}\n\n{machine()}\n"
    text += (
        f"{case.rows} rows x {case.accumulation} micro-batches, groups of {case.generations}, up to"
        f" {case.cap} "
    )
    text += "tokens. All ratios are to TRL: the median of the pairs (and their quartiles).\n"
    text += f"`python tests/bench/step.py {' '.join(sys.argv[1:])}`"
    for name in options.tables or (ON_A_GPU if options.gpu else ON_A_CPU):
        text += "\n\n" + builders[name](case, pairs)
    report("_".join(["step_gpu" if options.gpu else "step", *(options.tables or [])]), text)
    if not (options.gpu or options.tiny):
        kept = all(ratio <= TARGETS[lengths] for lengths, ratio in RATIOS.items())
        promise(kept, f"at most {TARGETS} of TRL's step")


if __name__ == "__main__":
    main()
