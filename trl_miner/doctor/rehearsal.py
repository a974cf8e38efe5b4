"""What the training makes before it needs the model's weights, made the same way, with a small
model in its place.

It is no list of rules: the training's own configuration, reward functions, data set and trainer say
what is wrong.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..data.base_model import find_model
from ..recipe.parsing import load_reward_funcs
from ..trainer.reward_functions import required_columns
from .context import Context, Finding, failed, listening, not_checked, ok, parse, said, warning
from .memory import find_config

_TINY: dict[str, Any] = {
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
_TINY |= {"num_key_value_heads": 2, "head_dim": 4, "layer_types": None, "max_window_layers": 1}


def load(context: Context) -> tuple[Any, Finding]:
    """Return the data as the training reads them, or None, and what that found."""
    from ..recipe.training_data import load_data

    (args, _, model_args, mixture), _ = context.parsed
    try:
        with listening():
            data = load_data(
                args, mixture, model_args, trusts=bool(context.settings.trust_remote_code)
            )
        return data, ok("the training set can be read.", "data")
    except Exception as error:  # of whatever reads it
        return None, (failed if context.machine.is_here else not_checked)(said(error), "data")


def check_trainer(context: Context) -> Iterator[Finding]:
    """Load the data and build the trainer as the training does, with a small model of the same
    kind."""
    (args, config, model_args, _), _ = parse(context.settings, context.processes)
    is_here = context.machine.is_here
    data, found = load(context)
    yield found
    if data is None and is_here:
        return
    with tempfile.TemporaryDirectory() as folder:
        try:
            _write_stand_in(context, Path(folder, "model"))
            model_args.model_name_or_path, model_args.model_revision = (
                str(Path(folder, "model")),
                "main",
            )
            _take_out_of_the_way(config, model_args, Path(folder, "run"))
            functions = load_reward_funcs(args, config)
            rows = data or _made_up_data(args, config, functions)
            trainer = _build(args, config, model_args, functions, rows)
        except Exception as error:  # of TRL, transformers, PEFT
            # a package, a tokenizer
            is_elsewhere = not is_here and isinstance(error, ImportError | OSError)
            yield (not_checked if is_elsewhere else failed)(said(error))
            return
        yield ok("the settings fit together: it can be built.")
        yield (warning if trainer.verifier.is_guess else ok)(trainer.verifier.reason, "rewards")
        if data:
            yield from _look(context, data)


def _made_up_data(args: Any, config: Any, functions: list[Any]) -> dict[str, Any]:
    """Return rows with the columns that the reward functions need, in the place of data that are
    not here."""
    from datasets import Dataset

    columns = {
        "prompt",
        *(column for function in functions for column in required_columns(function)),
    }
    rows = Dataset.from_dict(dict.fromkeys(columns, ["?"] * 2 * int(config.generation_batch_size)))
    data = rows.to_iterable_dataset() if args.dataset_streaming else rows
    return dict.fromkeys((args.dataset_train_split, args.dataset_test_split), data)


def _build(args: Any, config: Any, model_args: Any, functions: list[Any], data: Any) -> Any:
    """Return the trainer, once it has an optimizer."""
    from ..train import build

    with listening():
        trainer, _ = build(args, config, model_args, functions, data)
        trainer.create_optimizer_and_scheduler(1)
    return trainer


def _take_out_of_the_way(config: Any, model_args: Any, output: Path) -> None:
    """Change what would look at a GPU, write, or need a package or a server. Other checks look at
    these settings."""
    config.output_dir, config.push_to_hub, config.use_vllm, config.report_to = (
        str(output),
        False,
        False,
        [],
    )
    config.vllm_importance_sampling_correction = False
    config.fp16, config.bf16, config.mixed_precision = False, False, "no"
    if model_args.use_peft:
        model_args.load_in_4bit = model_args.load_in_8bit = False
    config.logging_dir = None
    if not str(getattr(config.optim, "value", config.optim)).startswith("adamw_torch"):
        config.optim = "adamw_torch"


def _write_stand_in(context: Context, folder: Path) -> None:
    """Write a model of the recipe's kind, with its vocabulary, its tokenizer and one small
    layer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    settings = context.settings
    name, code = find_model(str(settings.model_name_or_path)), bool(settings.trust_remote_code)
    config = find_config(settings)
    AutoModelForCausalLM.from_config(type(config)(**{**config.to_dict(), **_TINY})).save_pretrained(
        folder
    )
    tokenizer = AutoTokenizer.from_pretrained(
        name, revision=settings.model_revision, trust_remote_code=code
    )
    tokenizer.save_pretrained(folder)


def _look(context: Context, data: Any) -> Iterator[Finding]:
    """Show what the run would train, and check it as the training does."""
    from ..recipe.preview import preview_recipe
    from ..recipe.training_data import check_rows

    (args, config, model_args, _), _ = parse(context.settings, context.processes)
    try:
        with listening():
            check_rows(args, data)
            functions = load_reward_funcs(args, config)
            shown = preview_recipe(args, config, model_args, functions, data)
    except ValueError as error:
        yield failed(str(error), "data")
        return
    yield ok("\n".join(shown.lines), "preview")
    yield from (failed(text, "preview") for text in shown.refusals)
    yield from (warning(text, "preview") for text in shown.warnings)
