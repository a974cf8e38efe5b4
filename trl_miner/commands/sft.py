"""Teach a small model the form of the answers, before a training.

A model that never gives a correct answer in the right form cannot learn from rewards. This command
trains a model on the problems of a recipe and their reference answers, in eight wordings, and saves
it where the recipe looks for its model (model_name_or_path). If the data set has a column
completion, that is taught instead. Held-out problems are not used.

All options of `trl-miner train` are accepted and override the recipe.
"""

import argparse
import random
import tempfile
import warnings
from collections.abc import Sized
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..common.progress import finish, is_quiet
from ..grading.math_answers import gold_content
from ..trainer.on_cpu import warn_of_slow_bf16
from . import add_command, positive

# Both task_reward and math_reward find the answer in the box. With one wording, all right answers
# to a prompt would be one text, and MINER would have nothing to tell apart.
WORDINGS = (
    "\\boxed{%s}",
    "The answer is \\boxed{%s}.",
    "It is \\boxed{%s}.",
    "I get \\boxed{%s}.",
    "That makes \\boxed{%s}.",
    "So the result is \\boxed{%s}.",
    "\\boxed{%s} is the answer.",
    "The solution: \\boxed{%s}",
)
# What choice_reward reads.
CHOICES = (
    "The answer is %s.",
    "So the answer is %s.",
    "I think that the answer is %s.",
    "The answer is: %s",
    "The answer is option %s.",
    "Therefore, the answer is %s.",
    "The answer is \\boxed{%s}.",
    "**The answer is %s.**",
)


def add(commands: Any) -> None:
    option = add_command(commands, "sft", __doc__, run, passes_on=True).add_argument
    option(
        "--config",
        required=True,
        metavar="RECIPE",
        help="Recipe of the training that is to follow.",
    )
    option("--model", required=True, help="Model to start from: a Hub id or a folder.")
    option(
        "--steps",
        type=positive,
        default=40,
        metavar="N",
        help="Optimizer steps of 16 rows (default: 40).",
    )
    option("--lr", type=float, default=5e-5, metavar="X", help="Learning rate (default: 5e-5).")


def run(args: argparse.Namespace, rest: list[str]) -> int:
    from ..compare import HELD_OUT
    from ..data.base_model import find_model
    from ..data.prompt_form import write_form
    from ..data.worlds import WORLDS
    from ..recipe.files import with_recipe_file
    from ..recipe.parsing import make_parser
    from ..recipe.training_data import hold_out, load_data, rows_of, training_form

    # TRL itself uses a name that transformers has renamed; whoever reads the log cannot change that
    warnings.filterwarnings(
        "ignore", message=".*gradient_checkpointing. is deprecated", category=FutureWarning
    )
    words = with_recipe_file(["--config", args.config, *rest])
    script, config, model_args, mixture = make_parser(words).parse_args_and_config(words)
    folder = Path(model_args.model_name_or_path or ".")
    if folder.exists() or str(folder) in (args.model, *WORLDS):
        raise ValueError(
            f"{folder} is there already, and this command would write a model there: it is the"
            " recipe's model_name_or_path. Set that to another folder, or delete this one."
        )
    # the folder of the start is not there yet, and the model decides on the style of prompts
    data = load_data(script, mixture, replace(model_args, model_name_or_path=args.model))
    rows = rows_of(data, script)
    if not script.held_out and isinstance(rows, Sized) and len(rows) > HELD_OUT:
        script.held_out = HELD_OUT  # what trl-miner compare scores must not be taught
        rows = rows_of(hold_out(data, script), script)
    form = training_form(script, config, rows)
    rows = rows.map(_add_completion, with_indices=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    # A folder under the name of the start is a whole one, whenever this command is ended
    with tempfile.TemporaryDirectory(
        prefix=f"{folder.name}.building-", dir=folder.parent
    ) as building:
        start = Path(building, "start")
        taught = rows.select_columns(["prompt", "completion"])
        if form is not None and form.template_kwargs:
            taught = taught.add_column(
                "chat_template_kwargs", [dict(form.template_kwargs)] * len(taught)
            )
        _train(find_model(args.model), taught, start, config, args)
        write_form(start, form)
        start.rename(folder)
    finish([folder], [f"trl-miner train --config {args.config}"])
    return 0


def _add_completion(row: dict[str, Any], index: int) -> dict[str, Any]:
    """Add the completion to learn: the row's own, else the gold in a wording that the row's number
    decides."""
    is_chat = not isinstance(row["prompt"], str)
    own = row.get("completion")
    if own is not None:
        return {
            "completion": (
                [{"role": "assistant", "content": own}] if is_chat and isinstance(own, str) else own
            )
        }
    gold = row.get("answer") if "task" in row else row.get("solution")
    if gold is None:
        raise ValueError(
            f"Every row must have a reference answer in the column solution: row {index} has none. Set "
            "dataset_solution_column, or drop the row."
        )
    answer = str(gold).strip()
    if not row.get("options") and "\\boxed" in answer:
        answer = gold_content(answer) or answer
    text = random.Random(index).choice(CHOICES if row.get("options") else WORDINGS) % answer
    return {"completion": [{"role": "assistant", "content": text}] if is_chat else f" {text}"}


def _train(model: str, rows: Any, folder: Path, config: Any, args: argparse.Namespace) -> None:
    from transformers import PrinterCallback
    from trl import SFTConfig, SFTTrainer

    from ..trainer.finite_gradients import FiniteGradients

    class Teacher(FiniteGradients, SFTTrainer):
        pass

    trainer = Teacher(
        model=model,
        train_dataset=rows,
        args=SFTConfig(
            output_dir=str(folder),
            max_steps=args.steps,
            max_length=None,  # else TRL cuts off the answers to prompts of 1,024 tokens
            per_device_train_batch_size=16,
            learning_rate=args.lr,
            warmup_steps=0.1,
            model_init_kwargs={"dtype": "float32"},
            use_cpu=config.use_cpu,
            bf16=config.bf16,
            gradient_checkpointing=config.gradient_checkpointing,
            seed=config.seed,
            logging_strategy="no" if is_quiet() else "steps",
            logging_steps=10,
            save_strategy="no",
            report_to="none",
            disable_tqdm=is_quiet(),
        ),
    )
    warn_of_slow_bf16(trainer.accelerator)
    if is_quiet():
        # it prints a last line whatever the logging strategy
        trainer.remove_callback(PrinterCallback)
    trainer.train()
    trainer.save_model()
