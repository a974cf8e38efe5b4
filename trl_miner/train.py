"""The script behind `accelerate launch -m trl_miner.train --config RECIPE` and `trl-miner train --config RECIPE`."""

import contextlib
import functools
import gc
import importlib
import os
import shlex
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset, disable_progress_bars, load_dataset
from transformers.utils import logging
from trl import DatasetMixtureConfig, ModelConfig, get_dataset, get_peft_config, get_quantization_config

from . import grading, rewards
from .config import MinerGRPOConfig
from .data import base_model
from .data.benchmarks import BENCHMARKS, user_benchmark
from .data.benchmarks import load as load_benchmark
from .data.prompts import build_prompt, guess_style
from .data.worlds import WORLDS
from .evaluation.in_training import EvaluationCallback
from .hub.model_card import PICTURE
from .launching.watchdog import EXIT_CODE, RunStopped
from .progress import finish, quietly
from .recipe import OWN_REWARDS, TRL_REWARDS, MinerScriptArguments, check_recipe, make_parser
from .runs.checkpoints import agree_on
from .runs.training_record import write_run_record
from .trainer import MinerGRPOTrainer
from .trainer.training_log import show_training
from .viewing.curves import draw_training


def load_reward_funcs(args: MinerScriptArguments, config: MinerGRPOConfig) -> list[Callable[..., Any]]:
    """The functions that `reward_funcs` names."""
    return [_load_reward_func(name, args, config) for name in args.reward_funcs]


def _load_reward_func(name: str, args: MinerScriptArguments, config: MinerGRPOConfig) -> Callable[..., Any]:
    import trl.rewards

    if name == "get_soft_overlong_punishment":
        return trl.rewards.get_soft_overlong_punishment(config.max_completion_length, args.soft_overlong_cache)
    if name in TRL_REWARDS:
        return getattr(trl.rewards, name)
    if name == "math_reward" and args.math_accept_unboxed:
        # keeps its name: TRL logs rewards by it
        return functools.wraps(rewards.math_reward)(functools.partial(rewards.math_reward, accept_unboxed=True))
    if name in OWN_REWARDS:
        return getattr(rewards, name)
    if "." not in name:
        raise ValueError(
            f"reward_funcs must name known rewards or import paths: got '{name}'. Known: "
            f"{', '.join(OWN_REWARDS + TRL_REWARDS)}; a path has a dot, such as my_lib.rewards.{name}."
        )
    return _import("reward_funcs", name)


def _import(setting: str, path: str) -> Callable[..., Any]:
    module, _, function = path.rpartition(".")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{setting}: '{path}' could not be imported from {os.getcwd()}: {error}.") from error


def load_data(args: MinerScriptArguments, mixture: DatasetMixtureConfig) -> Any:
    """The data set of the recipe, by split. The embedded worlds go by their names."""
    if mixture.datasets:
        return get_dataset(mixture)
    if args.dataset_name in WORLDS:
        return {split: WORLDS[args.dataset_name].load_dataset(split) for split in ("train", "test")}
    if args.dataset_name:
        return load_dataset(args.dataset_name, name=args.dataset_config, streaming=args.dataset_streaming)
    raise ValueError(
        f"dataset_name must be given: a Hub id, a folder, or {' or '.join(WORLDS)} for embedded problems. "
        f"Or give a mixture with `datasets`."
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Train what the command line says.

    Args:
        argv: Its words; None: those of the command line.

    Raises:
        ValueError: A recipe or an option that cannot be.
    """
    # TRL's own use of a name that transformers has renamed; nothing that the reader of this log could change
    warnings.filterwarnings("ignore", message=".*gradient_checkpointing. is deprecated", category=FutureWarning)
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = make_parser()
    check_recipe(arguments, parser)
    script_args, config, model_args, mixture = parser.parse_args_and_config(arguments)
    if script_args.quiet:
        disable_progress_bars()
        logging.disable_progress_bar()
    try:
        with quietly(script_args.quiet):
            run(script_args, config, model_args, mixture)
    except RunStopped:  # which the watchdog has explained
        # Leaving in the usual way would wait for the part that hangs.
        sys.stdout.flush()
        os._exit(EXIT_CODE)
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
    with quietly(not trainer.is_world_process_zero()):
        return _run(trainer, args, data)


def _run(trainer: MinerGRPOTrainer, args: MinerScriptArguments, data: Any) -> MinerGRPOTrainer:
    config = trainer.args
    output = Path(config.output_dir)
    write_run_record(trainer, dataset=args.dataset_name, held_out=args.score_benchmark)
    problems, judge = _held_out(args, data, trainer)
    scores = EvaluationCallback(
        trainer,
        problems,
        args.score_samples,
        args.score_steps,
        judge=judge,
        keep_best=args.score_keep_best,
        final_samples=args.score_final_samples,
    )
    trainer.add_callback(scores)
    checkpoint = agree_on(config.resume_from_checkpoint, config.output_dir)
    if not scores.restore(checkpoint):
        scores.record("before")
    with contextlib.ExitStack() as stack:
        stack.push(show_training(trainer).close)
        trainer.train(resume_from_checkpoint=checkpoint)
    if "after" not in trainer.evaluation or config.load_best_model_at_end:  # no step was left, or it stopped early
        scores.record("after")
    trainer.save_model(config.output_dir, _internal_call=True)  # else transformers pushes, unsafely
    trainer.save_state()
    hub_dataset = None if args.dataset_name in WORLDS else args.dataset_name  # an embedded one has no page
    if trainer.is_world_process_zero():
        _draw(output)  # first: the card shows it
    trainer.create_model_card(model_name=output.name, dataset_name=hub_dataset)
    if config.push_to_hub:
        trainer.push_to_hub(dataset_name=hub_dataset)  # never raises: the run is finished, whatever the Hub does
    is_main = trainer.is_world_process_zero()
    if hasattr(trainer, "end"):  # transformers 5.18 and later: closes trackers and the process group
        trainer.end()
    if is_main:
        _finish(output, args)
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
            f"model_name_or_path must be given: a Hub id, a folder, or {' or '.join(WORLDS)} for an embedded base "
            f"model."
        )
    model = base_model.find_model(model, args.base_model_steps)
    if getattr(config, "trust_remote_code", False) and config.process_index == 0:
        print("trust_remote_code is on: code of the model's repository runs here.")
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
        **({"rollout_func": _import("rollout_func", args.rollout_func)} if args.rollout_func else {}),
    )
    return trainer


def _check_writable(output: Path) -> None:
    """Before the run, not when the first checkpoint is due."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=output):
            pass
    except OSError as error:
        raise OSError(f"output_dir must be a folder that can be written: {output} cannot ({error}).") from error


def _draw(output: Path) -> None:
    """A picture that cannot be drawn must not cost a finished run its way to the Hub."""
    try:
        draw_training(output)
    except (ValueError, OSError) as error:
        print(f"There is no picture of the training: {error}", file=sys.stderr)


def _finish(output: Path, args: MinerScriptArguments) -> None:
    """The closing lines: model, card, log, picture and scores; and what looks at them."""
    names = ("README.md", "trainer_state.json", PICTURE, "evaluation.json", "credit", "best")
    written = [output, *(path for name in names if (path := output / name).exists())]
    report = ["trl-miner", "report", str(output)]
    inspect = ["trl-miner", "inspect", str(output)]
    commands = [report, *([inspect] if (output / "credit").is_dir() else []), _evaluation(output, args)]
    finish(written, [shlex.join(command) for command in commands])


def _evaluation(output: Path, args: MinerScriptArguments) -> list[str]:
    """`trl-miner eval` of the run, on problems of the kind that it was trained for."""
    benchmark = args.score_benchmark or (
        args.dataset_name.rpartition("/")[2] if args.dataset_name in WORLDS
        else "medqa" if "choice_reward" in args.reward_funcs
        else "math500"
    )  # fmt: skip
    command = ["trl-miner", "eval", "--model", str(output), "--benchmarks"]
    name, _, path = benchmark.partition("=")
    return [*command, name, "--local", benchmark] if path and name in BENCHMARKS else [*command, benchmark]


if __name__ == "__main__":
    main()
