"""Make a recipe from a data set: what `trl-miner train problems.csv --model MODEL` trains."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from .data.reading import SUFFIXES, load_data_set
from .data.reasoning_gym import is_task
from .data.worlds import WORLDS
from .recipe_files import shipped
from .runs.files import read_yaml, write_whole

ROWS = 20  # that are read before the recipe is written
# A run of minutes rather than of days; the recipe has a line for each.
QUICK = {
    "num_generations": 8,
    "per_device_train_batch_size": 32,
    "max_steps": 100,
    "save_steps": 50,
}
SCORED = {"held_out": 100, "score_samples": 4}
ON_A_CPU = {"use_cpu": True, "bf16": False, "gradient_checkpointing": False}
# at the default, 256, the cache alone may take 56 GB with Qwen3-0.6B
ON_A_GPU = {"score_batch_size": 32}
GUESSED_WITH = (  # settings that are given, and go into the recipe
    *(
        "output_dir",
        "dataset_config",
        "dataset_revision",
        "dataset_train_split",
        "dataset_test_split",
    ),
    *(
        "dataset_prompt_column",
        "dataset_solution_column",
        "dataset_options_column",
        "answer_pattern",
    ),
)
HEADER = """\
# Made from {name}: what it holds was guessed from its columns and first rows.
# held_out: problems that are not trained on, scored before and after training.
"""
OF_A_CPU = """\
# use_cpu, bf16 and gradient_checkpointing: made on a machine without a GPU; leave them out on one that has one.
"""


def with_made_recipe(words: Sequence[str]) -> list[str]:
    """Return the words of a training whose first one may be a recipe or a data set, with `--config
    RECIPE` instead.

    For a data set, a recipe is written first, as `OUTPUT_DIR.yaml`.

    Raises:
        ValueError: The data set cannot be read, its columns cannot be guessed, or another recipe
            stands there.
    """
    if not words or words[0].startswith("-"):
        return list(words)
    name, *rest = words
    if not is_data(name):
        return ["--config", name, *rest]
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument("--model", "--model_name_or_path", dest="model_name_or_path")
    parser.add_argument("--reward_funcs", nargs="+")
    for setting in GUESSED_WITH:
        parser.add_argument(f"--{setting}")
    given, others = parser.parse_known_args(rest)
    recipe = make_recipe(
        name, {key: value for key, value in vars(given).items() if value is not None}
    )
    path = Path(f"{recipe['output_dir'].rstrip('/')}.yaml")
    if path.exists() and read_yaml(path) != recipe:
        raise ValueError(
            f"{path} is there and says something else. Train it with `trl-miner train {path}`,"
            " delete it, or give another --output_dir."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    header = HEADER.format(name=name) + (OF_A_CPU if "use_cpu" in recipe else "")
    text = header + yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True, width=10_000)
    write_whole(path, text)
    print(
        f"Recipe: {path}\n{text}Change it, and train again with `trl-miner train {path}`.",
        file=sys.stderr,
        flush=True,
    )
    return ["--config", str(path), *others]


def is_data(name: str) -> bool:
    """Return whether a word names a data set rather than a recipe: a data file, a task, or
    OWNER/NAME on the Hub."""
    if Path(name).suffix.lower() in SUFFIXES or name in WORLDS or is_task(name):
        return True
    folders = {shipped_name.partition("/")[0] for shipped_name in shipped()}
    is_recipe = Path(name).suffix in (".yaml", ".yml") or any(
        Path(f"{name}{end}").exists() for end in ("", ".yaml")
    )
    return (
        not is_recipe
        and name.count("/") == 1
        and name.partition("/")[0] not in {*folders, "recipes"}
    )


def make_recipe(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a recipe for a data set; those that are given stay."""
    import torch

    from .data.own import guess_settings

    given = dict(given)
    recipe = {"output_dir": given.pop("output_dir", None) or f"runs/{Path(name.rstrip('/')).stem}"}
    recipe["model_name_or_path"] = given.pop("model_name_or_path", None)
    if not recipe["model_name_or_path"]:
        raise ValueError(
            f"{name} is no recipe here, and as a data set it needs --model MODEL: a Hub id, a"
            " folder, or trl_miner/arithmetic for a tiny one. `trl-miner recipes` lists the"
            " recipes."
        )
    recipe["dataset_name"] = name
    run = SCORED | QUICK | (ON_A_GPU if torch.accelerator.is_available() else ON_A_CPU)
    if name in WORLDS or is_task(name):
        return recipe | run | given
    data = load_data_set(name, given.get("dataset_config"), given.get("dataset_revision"))
    split = given.get("dataset_train_split", "train")
    if split not in data:
        raise ValueError(
            f"{name} has no split {split!r}, but {', '.join(data)}. Name one with"
            " --dataset_train_split."
        )
    train = data[split]
    if given.get("dataset_test_split", "test") not in data:
        run["held_out"] = min(run["held_out"], max(1, len(train) // 10))  # a tenth of few problems
    settings = guess_settings(name, train.select(range(min(ROWS, len(train)))), given)
    return recipe | settings | {key: value for key, value in run.items() if key not in settings}
