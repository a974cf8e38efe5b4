"""The training script behind `accelerate launch -m trl_miner.train` and `trl-miner train`."""

if __name__ == "__main__":
    from trl_miner.common.importing import current_folder_last

    current_folder_last()
    from trl_miner.common.redaction import hide_in_tracebacks

    hide_in_tracebacks()  # Ctrl-C during the imports, too
    from trl_miner.common.network import go_offline_without_network

    go_offline_without_network()

import atexit
import contextlib
import gc
import os
import shlex
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from accelerate import PartialState
from torch.distributed import is_initialized
from transformers import AutoConfig
from trl import DatasetMixtureConfig, ModelConfig, get_peft_config, get_quantization_config

from . import grading
from .common.errors import INTERRUPTED, cause, is_explained, place_of, tell
from .common.importing import import_object
from .common.network import MADE_BY_SFT, not_loaded
from .common.progress import finish, is_quiet, quietly
from .common.redaction import hide_in_tracebacks, learn, redact
from .data import base_model
from .data.worlds import WORLDS
from .evaluation.in_training import EvaluationCallback
from .hub.model_card import PICTURE
from .launching.watchdog import TrainingWatchdog
from .recipe.files import with_recipe_file
from .recipe.parsing import MinerScriptArguments, load_reward_funcs, make_parser
from .recipe.preview import preview_recipe, show
from .recipe.training_data import (
    check_rows,
    held_out_problems,
    is_made,
    load_data,
    rows_of,
    training_form,
)
from .runs.locks import check_run, hold_run
from .runs.models import base_of_adapter
from .runs.run_folder import BEST
from .tools import check_prompts, load_environments, load_tools
from .trainer.config import RunConfig
from .trainer.on_cpu import tuned_for_cpu
from .training import RunTrainer
from .training.best_score import BestScore
from .training.callbacks import show_training, why_unmoved
from .viewing.curves import draw_training


def main(argv: Sequence[str] | None = None) -> None:
    """Train the recipe of a command line (default: the process's own)."""
    # TRL itself uses a name that transformers has renamed; whoever reads the log cannot change that
    warnings.filterwarnings(
        "ignore", message=".*gradient_checkpointing.* is deprecated", category=FutureWarning
    )
    arguments = sys.argv[1:] if argv is None else list(argv)
    learn(arguments)
    if argv is None:
        hide_in_tracebacks()
        sys.argv[1:] = redact(arguments)  # which trackers record
    arguments = with_recipe_file(arguments)
    script_args, config, model_args, mixture = make_parser(arguments).parse_args_and_config(
        arguments
    )
    with quietly(script_args.quiet):
        run(script_args, config, model_args, mixture)
    # Free the objects that hold the process group while the interpreter is still alive: one of
    # gloo's threads may need it for that, and aborts the process if it is finalized (one run in
    # ten, measured with two CPU processes). The thread must be done before, as it waits for the
    # interpreter with a lock that freeing the group waits for: the barrier lets it go on. Its own
    # work holds nothing of Python's.
    if is_initialized():  # else it was ended in order
        PartialState().wait_for_everyone()
    gc.collect()


def run(
    args: MinerScriptArguments,
    config: RunConfig,
    model_args: ModelConfig,
    mixture: DatasetMixtureConfig,
) -> RunTrainer:
    """Train one recipe: score, train, score, save, draw. Return the trainer."""
    PartialState()
    grading.configure(args.judge_workers, args.judge_seconds)
    with hold_run(str(config.output_dir)):
        reward_funcs = load_reward_funcs(args, config)
        trusts = bool(getattr(config, "trust_remote_code", False))
        _check_model(model_args, trusts=trusts)
        data = load_data(args, mixture, model_args, trusts=trusts)
        check_rows(args, data)
        if model_args.model_name_or_path:  # else an error that is told later
            show(preview_recipe(args, config, model_args, reward_funcs, data))
        trainer, scores = build(args, config, model_args, reward_funcs, data)
        with quietly(not trainer.is_world_process_zero()), tuned_for_cpu(trainer.model):
            return _run(trainer, scores, args, model_args)


def _check_model(model_args: ModelConfig, *, trusts: bool) -> None:
    """Raise ValueError for a model that is not there. It is asked for its code only if the recipe
    trusts that."""
    model = model_args.model_name_or_path
    if not model or model in WORLDS:  # none: an error that is told later
        return
    try:
        AutoConfig.from_pretrained(
            base_of_adapter(model) or model,
            revision=model_args.model_revision,
            trust_remote_code=trusts,
        )
    except (OSError, ValueError, KeyError) as error:
        why = not_loaded("model", model, error, model_args.model_revision)
        raise ValueError(f"{why} {MADE_BY_SFT}") from error


def build(
    args: MinerScriptArguments,
    config: RunConfig,
    model_args: ModelConfig,
    reward_funcs: list[Callable[..., Any]],
    data: Any,
) -> tuple[RunTrainer, EvaluationCallback]:
    """Return a recipe's trainer, ready to train, and what scores its held-out problems.

    `trl-miner doctor` calls it too, with a small model in place of the recipe's: what it refuses
    must be found here.
    """
    trainer = _build_trainer(args, config, model_args, reward_funcs, data)
    trainer.take_form(training_form(args, config, rows_of(data, args)))
    problems, reward_func = held_out_problems(args, data, trainer)
    scores = EvaluationCallback(
        trainer,
        problems,
        args.score_samples,
        args.score_steps,
        reward_func=reward_func,
        batch_size=args.score_batch_size,
        final_samples=args.score_final_samples,
    )
    trainer.add_callback(scores)
    if args.keep_best or args.early_stop:
        trainer.add_callback(BestScore(trainer, keeps=args.keep_best, patience=args.early_stop))
    return trainer, scores


def _run(
    trainer: RunTrainer,
    scores: EvaluationCallback,
    args: MinerScriptArguments,
    model_args: ModelConfig,
) -> RunTrainer:
    config, output = trainer.args, Path(str(trainer.args.output_dir))
    trainer.about = {"dataset": args.dataset_name, "others": (args, model_args)}
    _train(
        trainer,
        scores,
        trainer.find_checkpoint(config.resume_from_checkpoint),
        args.watchdog_seconds,
    )
    _publish(trainer, output, None if is_made(args) else args.dataset_name)
    is_main = trainer.is_world_process_zero()
    trainer.accelerator.wait_for_everyone()  # as at the end of `main`
    # transformers 5.18 and later: closes trackers and the process group
    if hasattr(trainer, "end"):
        trainer.end()
    if is_main:
        _finish(output)
        if not is_quiet() and (remark := why_unmoved(trainer)):
            print(remark, flush=True)
    return trainer


def _train(
    trainer: RunTrainer,
    scores: EvaluationCallback,
    checkpoint: str | None,
    patience: float | None,
) -> None:
    """Score, train, and score."""
    if not scores.restore(checkpoint):
        scores.record("before")
    show_training(trainer)
    with contextlib.nullcontext() if patience == 0 else TrainingWatchdog(trainer, patience):
        trainer.train(resume_from_checkpoint=checkpoint)
    # none if no step was left, or it stopped early
    if "after" not in trainer.evaluation or trainer.args.load_best_model_at_end:
        scores.record("after")


def _publish(trainer: RunTrainer, output: Path, hub_dataset: str | None) -> None:
    """Save the model, draw the training, write the card, and push if the recipe says so."""
    check_run(output)  # the scoring may have taken long
    # transformers would push pickles and logs
    trainer.save_model(trainer.args.output_dir, _internal_call=True)
    trainer.save_state()
    if trainer.is_world_process_zero():
        try:
            draw_training(output)  # before the card, which shows the picture
        except (ValueError, OSError) as error:  # must not cost a finished run its push
            print(f"There is no picture of the training: {error}", file=sys.stderr)
    trainer.create_model_card(model_name=output.name, dataset_name=hub_dataset)
    if trainer.args.push_to_hub:
        trainer.push_to_hub(dataset_name=hub_dataset)  # reports errors of the Hub, and raises none


def _build_trainer(
    args: MinerScriptArguments,
    config: RunConfig,
    model_args: ModelConfig,
    reward_funcs: list[Callable[..., Any]],
    data: Any,
) -> Any:
    model = model_args.model_name_or_path
    if not model:
        allowed = f"a Hub id, a folder, or {' or '.join(WORLDS)} for an embedded base model"
        raise ValueError(f"model_name_or_path must be given: {allowed}.")
    model = base_model.find_model(model)
    quantization, adapter = get_quantization_config(model_args), get_peft_config(model_args)
    if adapter is not None and model_args.model_revision != "main":
        adapter.revision = model_args.model_revision  # for whoever loads it
    config.model_init_kwargs = {
        "revision": model_args.model_revision,
        "attn_implementation": model_args.attn_implementation,
        "dtype": model_args.dtype,
        **(config.model_init_kwargs or {}),
    }
    if base_of_adapter(model):
        model, adapter = _load_adapter(model, config, quantization), None
    given: dict[str, Any] = {
        "model": model,
        "reward_funcs": reward_funcs or None,
        "args": config,
        "train_dataset": rows_of(data, args),
        "peft_config": adapter,
        **_load_tools(args, data),
    }
    if args.asynchronous:
        from .training.asynchronous import AsyncRunTrainer

        return AsyncRunTrainer.of_recipe(args, model_args, **given)
    return RunTrainer(
        eval_dataset=(
            rows_of(data, args, "dataset_test_split") if config.eval_strategy != "no" else None
        ),
        quantization_config=quantization if isinstance(model, str) else None,
        rollout_func=(
            import_object("rollout_func", args.rollout_func) if args.rollout_func else None
        ),
        **given,
    )


def _load_adapter(folder: str, config: RunConfig, quantization: Any) -> Any:
    """Return the adapter of a folder, such as that of an earlier run, on its base model: it is
    trained further."""
    from peft import AutoPeftModelForCausalLM

    options, config.model_init_kwargs = dict(config.model_init_kwargs or {}), None
    del options["revision"]  # of the recipe's model, which is this folder
    return AutoPeftModelForCausalLM.from_pretrained(
        folder,
        is_trainable=True,
        quantization_config=quantization,
        trust_remote_code=bool(config.trust_remote_code),
        **options,
    )


def _load_tools(args: MinerScriptArguments, data: Any) -> dict[str, Any]:
    """Return the trainer's `tools` and `environment_factory`, if the recipe names some."""
    settings: dict[str, Any] = {}
    if args.tools:
        settings["tools"] = load_tools(args.tools, args.tool_seconds)
    if args.environment_factory:
        settings["environment_factory"] = load_environments(
            args.environment_factory, args.tool_seconds
        )
    for setting in settings:
        check_prompts(setting, next(iter(rows_of(data, args))).get("prompt"))
    return settings


def _finish(output: Path) -> None:
    """Print the closing lines: what the run wrote, and the commands that show it."""
    names = ("README.md", "trainer_state.json", PICTURE, "held_out.json", "credit", BEST)
    written = [output, *(path for name in names if (path := output / name).exists())]
    shows = ["report", "inspect"] if (output / "credit").is_dir() else ["report"]
    commands = [["trl-miner", show, str(output)] for show in ("try", *shows)]
    finish(written, [*map(shlex.join, commands)])


def _command(argv: Sequence[str] | None = None) -> int:
    """Train the recipe of the command line, and tell of a mistake in one line; in the training,
    show the traceback."""
    gc.freeze()  # all that the imports have left, which accelerate's collections would look through
    gc.enable()
    try:
        main(argv)
    except KeyboardInterrupt:
        _end_interrupted()
    except SystemExit as error:  # of --help, or in code of the user's
        if not _arose_in(run, error):
            raise
        text = f"{cause(error)} ended the training in {place_of(error)}. Leave it out there."
        return tell(ValueError(text), "train")
    except Exception as error:
        if _arose_in(_train, error) and not is_explained(error):
            raise
        return tell(error, "train", sys.argv[1:] if argv is None else argv)
    return 0


def _arose_in(function: Callable[..., Any], error: BaseException) -> bool:
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code is function.__code__ for frame, _ in frames)


def _end_interrupted() -> None:
    """Say once how to go on, and end at once: an ordinary exit may wait for what the other
    processes held."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if int(os.environ.get("RANK") or 0) == 0:
        how = (
            "To go on from the newest checkpoint: the same command with --resume_from_checkpoint"
            " latest"
        )
        print(f"trl-miner train: stopped by Ctrl-C. {how}", file=sys.stderr, flush=True)
    atexit._run_exitfuncs()  # trackers
    sys.stdout.flush()
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(_command())
