"""The script behind `accelerate launch -m trl_miner.train --config RECIPE` and `trl-miner train --config RECIPE`."""

import difflib
import functools
import gc
import importlib
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datasets import Dataset, load_dataset
from transformers import ProgressCallback
from trl import (
    DatasetMixtureConfig,
    ModelConfig,
    ScriptArguments,
    TrlParser,
    get_dataset,
    get_peft_config,
    get_quantization_config,
)

from . import grading, rewards
from .config import MinerGRPOConfig
from .data import arithmetic, base_model
from .data.prompts import build_prompt, guess_style
from .evaluation.benchmarks import BENCHMARKS, user_benchmark
from .evaluation.benchmarks import load as load_benchmark
from .evaluation.in_training import EvaluationCallback
from .grading.pool import CPU_SECONDS
from .progress import ShortProgressCallback
from .trainer import MinerGRPOTrainer
from .viewing.curves import draw_training

_OWN_REWARDS = ("math_reward", "choice_reward")
_TRL_REWARDS = ("accuracy_reward", "reasoning_accuracy_reward", "think_format_reward", "get_soft_overlong_punishment")


@dataclass
class MinerScriptArguments(ScriptArguments):
    """What a recipe may set besides the trainer's, the model's and the data set mixture's arguments."""

    reward_funcs: list[str] = field(
        default_factory=lambda: ["math_reward"],
        metadata={
            "help": f"Reward functions: {', '.join(_OWN_REWARDS)}, TRL's {', '.join(_TRL_REWARDS)}, or dotted import "
            "paths such as my_lib.rewards.my_reward. The first one decides what is correct."
        },
    )
    soft_overlong_cache: int = field(
        default=256,
        metadata={
            "help": "For get_soft_overlong_punishment: completions longer than max_completion_length minus this lose "
            "reward, in tokens."
        },
    )
    math_accept_unboxed: bool = field(
        default=False,
        metadata={"help": "For math_reward: look for a final answer in completions without a \\boxed{} too."},
    )
    judge_seconds: float = field(
        default=CPU_SECONDS,
        metadata={"help": "Limit for judging one answer, in seconds of CPU; over it, the answer scores None."},
    )
    judge_workers: int | None = field(
        default=None,
        metadata={"help": "Processes that judge answers, for each training process. Default: its share of the CPUs."},
    )
    score_problems: int = field(
        default=0,
        metadata={"help": "Held-out problems to score before and after training; 0 scores none."},
    )
    score_samples: int = field(default=8, metadata={"help": "Completions sampled per held-out problem."})
    score_steps: int = field(
        default=0,
        metadata={
            "help": "Score the held-out problems during training too, every so many optimiser steps; 0: only before "
            "and after. Changes nothing in the training but its duration."
        },
    )
    score_benchmark: str | None = field(
        default=None,
        metadata={
            "help": f"Score problems of a benchmark ({', '.join(BENCHMARKS)}) instead of the data set's test split: "
            "its name, or NAME=PATH of a local file, also of one of your own with the columns problem and answer."
        },
    )
    score_keep_best: bool = field(
        default=False,
        metadata={"help": "Keep the model with the highest Pass@1 so far in the folder `best` of output_dir."},
    )
    base_model_steps: int | None = field(
        default=None,
        metadata={
            "help": f"For {arithmetic.NAME}: SFT steps of the base model, fewer for a quick look. Default: all."
        },
    )

    def __post_init__(self) -> None:
        for name, least, hint in (
            ("score_problems", 0, "0 scores none"),
            ("score_samples", 1, "The default is 8"),
            ("score_steps", 0, "0 scores before and after training only"),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}: got {getattr(self, name)}. {hint}.")
        for name in ("score_steps", "score_benchmark", "score_keep_best"):
            if getattr(self, name) and not self.score_problems:
                raise ValueError(
                    f"{name} needs problems to score: got {name}={getattr(self, name)} and score_problems=0. Set "
                    f"score_problems, or leave {name} out."
                )
        name, equals, path = (self.score_benchmark or "").partition("=")
        if name and not path and name not in BENCHMARKS:
            raise ValueError(
                f"score_benchmark must name a benchmark, or be NAME=PATH: got {self.score_benchmark!r}. Known: "
                f"{', '.join(BENCHMARKS)}."
            )


PARSED_TYPES = (MinerScriptArguments, MinerGRPOConfig, ModelConfig, DatasetMixtureConfig)


def make_parser() -> TrlParser:
    return TrlParser(PARSED_TYPES, prog="trl-miner train")


def check_recipe(arguments: Sequence[str], parser: TrlParser) -> None:
    """Raise for a recipe that is not there, is no mapping, or has a key that nothing takes.

    TRL hands unknown keys on to `accelerate launch`, where a typo fails far from its cause, or passes unnoticed.
    """
    import yaml

    if "--config" not in arguments:
        return
    position = list(arguments).index("--config") + 1
    if position == len(arguments):
        raise ValueError("--config must be followed by the path of a recipe: got nothing.")
    path = Path(arguments[position])
    if not path.is_file():
        raise ValueError(f"--config must name a recipe: got {path}, which is not a file. Try recipes/arithmetic/.")
    recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(recipe, dict):
        raise ValueError(f"{path} must hold a mapping of settings: got {type(recipe).__name__}.")
    known = {action.dest for action in parser._actions} | {"env"}
    for key in recipe:
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f"Did you mean '{close[0]}'?" if close else "Settings of accelerate go on the command line."
            raise ValueError(f"{path}: unknown key '{key}'. {hint}")


def load_reward_funcs(args: MinerScriptArguments, config: MinerGRPOConfig) -> list[Callable[..., Any]]:
    """The functions that `reward_funcs` names."""
    return [_load_reward_func(name, args, config) for name in args.reward_funcs]


def _load_reward_func(name: str, args: MinerScriptArguments, config: MinerGRPOConfig) -> Callable[..., Any]:
    import trl.rewards

    if name == "get_soft_overlong_punishment":
        return trl.rewards.get_soft_overlong_punishment(config.max_completion_length, args.soft_overlong_cache)
    if name in _TRL_REWARDS:
        return getattr(trl.rewards, name)
    if name == "math_reward" and args.math_accept_unboxed:
        # keeps its name: TRL logs rewards by it
        return functools.wraps(rewards.math_reward)(functools.partial(rewards.math_reward, accept_unboxed=True))
    if name in _OWN_REWARDS:
        return getattr(rewards, name)
    module, _, function = name.rpartition(".")
    if not module:
        raise ValueError(
            f"reward_funcs must name known rewards or import paths: got '{name}'. Known: "
            f"{', '.join(_OWN_REWARDS + _TRL_REWARDS)}; a path has a dot, such as my_lib.rewards.{name}."
        )
    sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"reward_funcs: '{name}' could not be imported from {os.getcwd()}: {error}.") from error


def load_data(args: MinerScriptArguments, mixture: DatasetMixtureConfig) -> Any:
    """The data set of the recipe, by split. `trl_miner/arithmetic` is the embedded world."""
    if mixture.datasets:
        return get_dataset(mixture)
    if args.dataset_name == arithmetic.NAME:
        return {split: arithmetic.load_dataset(split) for split in ("train", "test")}
    if args.dataset_name:
        return load_dataset(args.dataset_name, name=args.dataset_config, streaming=args.dataset_streaming)
    raise ValueError(
        f"dataset_name must be given: a Hub id, a folder, or {arithmetic.NAME} for the embedded problems. "
        f"Or give a mixture with `datasets`."
    )


def main(argv: Sequence[str] | None = None) -> None:
    # TRL's own use of a name that transformers has renamed; nothing that the reader of this log could change
    warnings.filterwarnings("ignore", message=".*gradient_checkpointing. is deprecated", category=FutureWarning)
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = make_parser()
    check_recipe(arguments, parser)
    script_args, config, model_args, mixture = parser.parse_args_and_config(arguments)
    run(script_args, config, model_args, mixture)
    # Free what holds the process group while Python is still whole: one of gloo's threads may need the interpreter for
    # that, and aborts the process when it finds it finalized (one run in ten, measured on two CPU processes).
    gc.collect()


def run(
    args: MinerScriptArguments, config: MinerGRPOConfig, model_args: ModelConfig, mixture: DatasetMixtureConfig
) -> MinerGRPOTrainer:
    """Train one recipe: score, train, score, save, draw. Returns the trainer."""
    grading.configure(args.judge_workers, args.judge_seconds)
    _check_writable(Path(config.output_dir))
    reward_funcs = load_reward_funcs(args, config)
    data = load_data(args, mixture)
    trainer = _build_trainer(args, config, model_args, reward_funcs, data)
    output = Path(config.output_dir)
    problems, judge = _held_out(args, data, trainer)
    scores = EvaluationCallback(
        trainer, problems, args.score_samples, args.score_steps, judge=judge, keep_best=args.score_keep_best
    )
    trainer.add_callback(scores)
    checkpoint = _checkpoint(config)
    if not scores.restore(checkpoint):
        scores.record("before")
    trainer.train(resume_from_checkpoint=checkpoint)
    if "after" not in trainer.evaluation or config.load_best_model_at_end:  # no step was left, or it stopped early
        scores.record("after")
    trainer.save_model(config.output_dir)
    trainer.save_state()
    hub_dataset = None if args.dataset_name == arithmetic.NAME else args.dataset_name  # the embedded one has no page
    trainer.create_model_card(model_name=output.name, dataset_name=hub_dataset)
    if trainer.is_world_process_zero():
        print(f"Model, card and log are in {output}; {_draw(output)}")
    if config.push_to_hub:
        trainer.push_to_hub(dataset_name=hub_dataset)
    if hasattr(trainer, "end"):  # transformers 5.18 and later: closes trackers and the process group
        trainer.end()
    return trainer


def _held_out(args: MinerScriptArguments, data: Any, trainer: MinerGRPOTrainer) -> tuple[Any, Any]:
    """The problems to score, and the reward function that judges them (None: the trainer's first)."""
    if not args.score_problems:
        return None, None
    if args.score_benchmark is None:
        problems = data[args.dataset_test_split]
        return problems.select(range(min(args.score_problems, len(problems)))), None
    name, _, path = args.score_benchmark.partition("=")
    benchmark = BENCHMARKS[name] if name in BENCHMARKS else user_benchmark(name, path)
    found = load_benchmark(benchmark, path or None)[: args.score_problems]
    style = guess_style(trainer.model.config.name_or_path, trainer.processing_class)
    rows = [
        {
            "prompt": build_prompt(benchmark.kind, p.question, p.options, p.context, style=style),
            "solution": p.solution,
            "options": list(p.options),
        }
        for p in found
    ]
    return Dataset.from_list(rows), rewards.choice_reward if benchmark.grader == "choice" else rewards.math_reward


def _build_trainer(
    args: MinerScriptArguments,
    config: MinerGRPOConfig,
    model_args: ModelConfig,
    reward_funcs: list[Callable[..., Any]],
    data: Any,
) -> MinerGRPOTrainer:
    model = model_args.model_name_or_path
    if not model:
        raise ValueError(
            f"model_name_or_path must be given: a Hub id, a folder, or {arithmetic.NAME} for the embedded base model."
        )
    if model == arithmetic.NAME:
        steps = {} if args.base_model_steps is None else {"steps": args.base_model_steps}
        model = str(base_model.base_model(base_model.BaseModelSettings(**steps)))
    config.model_init_kwargs = {
        "revision": model_args.model_revision,
        "attn_implementation": model_args.attn_implementation,
        "dtype": model_args.dtype,
        **(config.model_init_kwargs or {}),
    }
    trainer = MinerGRPOTrainer(
        model=model,
        reward_funcs=reward_funcs,
        args=config,
        train_dataset=data[args.dataset_train_split],
        eval_dataset=data[args.dataset_test_split] if config.eval_strategy != "no" else None,
        quantization_config=get_quantization_config(model_args),
        peft_config=get_peft_config(model_args),
    )
    if not config.disable_tqdm:
        trainer.remove_callback(ProgressCallback)
        trainer.add_callback(ShortProgressCallback)
    return trainer


def _check_writable(output: Path) -> None:
    """Before the run, not when the first checkpoint is due."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=output):
            pass
    except OSError as error:
        raise OSError(f"output_dir must be a folder that can be written: {output} cannot ({error}).") from error


def _draw(output: Path) -> str:
    """A picture that cannot be drawn must not cost a finished run its way to the Hub."""
    try:
        return f"the picture is {draw_training(output)}."
    except (ValueError, OSError) as error:
        return f"there is no picture: {error}"


def _checkpoint(config: MinerGRPOConfig) -> str | None:
    """`resume_from_checkpoint`, where `latest` is the newest whole one in output_dir, or none for a first start."""
    wanted = config.resume_from_checkpoint
    if wanted not in ("latest", "true", "True", True):
        return wanted
    # transformers writes the state last: without it, the process died while it saved
    folders = [state.parent for state in Path(config.output_dir).glob("checkpoint-*/trainer_state.json")]
    steps = {int(folder.name.partition("-")[2]): str(folder) for folder in folders if folder.name[11:].isdigit()}
    return steps[max(steps)] if steps else None


if __name__ == "__main__":
    main()
