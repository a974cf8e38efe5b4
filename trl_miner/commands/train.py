"""Train a recipe, or your own data.

It starts `python -m trl_miner.launching.local`. This process stays light: it loads no TRL.
"""

import argparse
from collections.abc import Sequence
from typing import Any

USAGE = """\
usage: trl-miner train RECIPE [options]
       trl-miner train DATA --model MODEL [options]

Train a recipe, or your own data (a file, a folder, or a data set on the Hub):

  trl-miner train arithmetic/quick
  trl-miner train problems.csv --model Qwen/Qwen3-0.6B

`trl-miner recipes` shows the recipes. For your own data, a recipe is written first, for you to change.
An option overrides the recipe's setting of the same name. These are the most important ones; behind
each stands the default for a setting that the recipe leaves out.

The method and the scores:
  --advantage_estimator NAME       Method that turns rewards into advantages (default: miner).
  --all_right NAME                 Method for all-right prompts (default: what advantage_estimator does).
  --dose_share X                   MINER's share of the gradient, between 0 and 1 (default: a cap instead).
  --held_out N                     Problems, or a benchmark, to score before and after (default: 0).
  --log_token_credit N             Record tokens for `trl-miner inspect` every N steps (default: 0, never).

The training, by TRL:
  --model NAME                     Model: a Hub id or a folder. Short for --model_name_or_path.
  --dataset_name NAME              Data: a Hub id, a file or a folder (default: the recipe's, or DATA).
  --output_dir FOLDER              Folder of the run (default: trainer_output; with DATA: runs/DATA).
  --learning_rate X                Peak learning rate (default: 1e-06).
  --max_steps N                    Optimizer steps (default: -1, which trains whole epochs).
  --num_generations N              Completions per prompt (default: 8).
  --per_device_train_batch_size N  Completions per process and micro-batch (default: 8).
  --max_completion_length N        Limit of a completion, in tokens (default: 512).
  --seed N                         Seed of the run (default: 42).
  --resume_from_checkpoint latest  Resume the run in output_dir from its newest checkpoint (default: no).

Help:
  --help methods                   Show all methods and their parameters.
  --help all                       Show all settings: ours by group, then those of TRL and transformers.
  --quiet                          Show only scores, warnings and errors.
  --traceback                      Show where an error arose.

`accelerate launch --help` shows the options of accelerate, such as --num_processes.
"""


def add(commands: Any) -> None:
    commands.add_parser("train", add_help=False).set_defaults(
        run=run, passes_on=True, reads_files_alone=False
    )


def run(args: argparse.Namespace, arguments: list[str]) -> int:
    """Start the training. `arguments` are those of the script and of accelerate's launcher."""
    if "-h" in arguments or "--help" in arguments:
        _help(arguments)
        return 0
    from ..data_recipe.first_word import with_made_recipe
    from ..launching.supervise import run_training
    from ..recipe.files import with_recipe_file

    return run_training(with_recipe_file(with_made_recipe(arguments)))


def _methods() -> str:
    """Return a line for each method, by the setting that chooses it."""
    from ..methods import ESTIMATORS, POLICY_LOSSES, SELECTIONS
    from ..methods.compose import ALL_RIGHT, ALL_WRONG, estimators_of

    lines = [
        "A parameter behind a method is set with advantage_estimator_kwargs or policy_loss_kwargs."
    ]
    for setting, methods in (
        ("advantage_estimator", ESTIMATORS),
        ("policy_loss", POLICY_LOSSES),
        ("prompt_selection", SELECTIONS),
    ):
        lines += ["", f"--{setting}"]
        for name, method in methods.items():
            paper = f", arXiv {method.arxiv}" if method.arxiv else ""
            chosen = [f"--{own}" for own in method.settings.values()]
            chosen += [f"{knob}={value.default}" for knob, value in method.parameters.items()]
            about = f"{method.label}{paper}{': ' * bool(chosen)}{', '.join(chosen)}"
            lines.append(f"  {name:<22}{about}")
    for kind in (ALL_RIGHT, ALL_WRONG):
        lines += ["", f"--{kind}", f"  {', '.join(estimators_of(kind))}, none"]
    lines += [
        "",
        "The others are settings of their own: --dynamic_sampling, --adaptive_sampling_rounds, and",
    ]
    return "\n".join([*lines, "--importance_sampling_level sequence (GSPO)."])


def _help(words: Sequence[str]) -> None:
    """Print the help that a command line asks for: the word behind `--help` names it."""
    place = next(place for place, word in enumerate(words) if word in ("-h", "--help"))
    topic = next(iter(words[place + 1 :]), "")
    if topic == "all":
        from ..recipe.parsing import help_on_all_settings

        print(help_on_all_settings(), end="")
    elif topic == "methods":
        print(_methods())
    elif topic and not topic.startswith("-"):
        raise ValueError(
            f"No help on {topic!r}. The topics are `--help all` and `--help methods`; `--help` alone"
            " shows the most important settings."
        )
    else:
        print(USAGE, end="")
