"""Make a recipe from a data set: what `trl-miner train problems.csv --model MODEL` trains."""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_origin, get_type_hints

import yaml

from ..common.importing import did_you_mean
from ..common.network import not_found
from ..common.progress import Progress
from ..common.setting import alternatives, convert
from ..data.guessing import FIRST_ROWS, guess_settings, layout_of_settings
from ..data.prompt_form import read_form
from ..data.reading import SUFFIXES, load_data_set
from ..data.reasoning_gym import is_task
from ..data.settings import DATA_SETTINGS
from ..data.worlds import WORLDS
from ..doctor.context import parse
from ..recipe.files import shipped
from ..recipe.parsing import MinerScriptArguments, load_reward_funcs, parse_words, split_words
from ..recipe.preview import Preview, preview_recipe
from ..recipe.training_data import check_rows, load_data
from ..runs.checkpoints import choose
from ..runs.files import read_yaml, write_whole
from ..runs.run_folder import must_clear
from .model_knobs import choose_knobs
from .text import is_unedited, recipe_text

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
GUESSED_WITH = [
    *"""
    output_dir dataset_config dataset_revision dataset_train_split dataset_test_split
    reward_funcs prompt_template system_prompt
    """.split(),
    *DATA_SETTINGS,
]
_RUN = {*QUICK, *SCORED, *ON_A_CPU, *ON_A_GPU}
# Options of one start, or secrets: they stay on the line.
NOT_KEPT = {"quiet", "resume_from_checkpoint", "overwrite_output_dir", "hub_token", "config"}


def write_recipe(name: str, rest: Sequence[str]) -> list[str]:
    """Write the recipe for a data set, as `OUTPUT_DIR.yaml`, once model and data have been looked at
    and nothing speaks against them; return the words of its training.

    Raises:
        ValueError: The data set cannot be read, its columns cannot be guessed, its preview refuses
            it, or another recipe stands there.
    """
    with Progress(f"looking at {name}", unit="", leave=False):
        recipe, reasons, comments, left = plan_recipe(name, rest)
        path = Path(f"{recipe['output_dir'].rstrip('/')}.yaml")
        text = recipe_text(name, recipe, comments)
        is_new = not path.exists() or read_yaml(path) != recipe
        if is_new and path.exists():
            _check_may_replace(path, left)
        shown = look_at(recipe)
    if shown.refusals:
        print(f"{explained(recipe, reasons)}\n{shown}", file=sys.stderr, flush=True)
        shown.check()
    if is_new:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    print(
        f"{explained(recipe, reasons)}\nRecipe: {path}\n{path.read_text(encoding='utf-8')}Change"
        f" it, and train again with `trl-miner train {path}`.",
        file=sys.stderr,
        flush=True,
    )
    return ["--config", str(path), *left]


class Planned(NamedTuple):
    """A recipe for a data set, before it is written."""

    recipe: dict[str, Any]
    reasons: dict[str, str]  # of what was guessed
    comments: dict[str, str]  # behind its settings
    left: list[str]  # options that are not in it


def plan_recipe(name: str, words: Sequence[str]) -> Planned:
    """Return the recipe for a data set and the options behind it."""
    recipe, reasons, others = read_data_words(name, words)
    given, left = split_given(recipe, others)
    knobs, comments = choose_knobs(recipe | given)
    run = {key: value for key, value in recipe.items() if key in _RUN}
    data = {key: value for key, value in recipe.items() if key not in run}
    return Planned(data | knobs | run | given, reasons, comments, left)


def _check_may_replace(path: Path, words: Sequence[str]) -> None:
    """Raise ValueError for a recipe that somebody has edited, or that a run was trained by."""
    if not is_unedited(path):
        raise ValueError(
            f"{path} was edited, and this line says something else. Train it with `trl-miner train"
            f" {path}`, delete it, or give another --output_dir."
        )
    settings, *_ = parse_words(["--config", str(path), *words])
    wanted, model = settings.resume_from_checkpoint, str(settings.model_name_or_path)
    checkpoint = choose(wanted, Path(settings.output_dir))
    must_clear(settings, {}, wanted=wanted, checkpoint=checkpoint, model=model)


def read_data_words(
    name: str, words: Sequence[str]
) -> tuple[dict[str, Any], dict[str, str], list[str]]:
    """Return the recipe for a data set and the options behind it, why its settings are as they are,
    and the options that are not in it."""
    words = ["--model_name_or_path" if word == "--model" else word for word in words]
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    for setting in ("model_name_or_path", *GUESSED_WITH):
        is_list = setting in ("reward_funcs", "options_columns", "context_columns")
        parser.add_argument(f"--{setting}", nargs="+" if is_list else None)
    given, others = parser.parse_known_args(words)
    texts = {key: value for key, value in vars(given).items() if value is not None}
    hints = get_type_hints(MinerScriptArguments)
    settings = {key: convert(key, text, hints.get(key, Any)) for key, text in texts.items()}
    return *make_recipe(name, settings), others


def split_given(
    recipe: Mapping[str, Any], words: Sequence[str]
) -> tuple[dict[str, Any], list[str]]:
    """Return the settings that are given as options behind a recipe, and the options that do not
    belong into it: those of one start, and accelerate's."""
    settings, _, parser = _parse(recipe, words)
    hints = {
        name: hint for kind in parser.dataclass_types for name, hint in get_type_hints(kind).items()
    }
    given, left, is_left = {}, [], False
    for word in words:
        if word.startswith("--"):
            action = parser._option_string_actions.get(word.partition("=")[0])
            is_left = action is None or action.dest in NOT_KEPT
            if action is not None and not is_left:
                value = getattr(settings, action.dest)
                given[action.dest] = _plain(value, hints.get(action.dest, str))
        if is_left:
            left.append(word)
    return given, left


def _plain(value: Any, hint: Any) -> Any:
    """Return a value as YAML has it: a command line gives a text where a setting may be one."""
    value = getattr(value, "value", value)  # of an enumeration
    kinds = {get_origin(kind) or kind for kind in alternatives(hint)}
    is_other = isinstance(value, str) and kinds & {int, float, dict}
    return yaml.safe_load(value) if is_other else value


def _parse(recipe: Mapping[str, Any], words: Sequence[str] = ()) -> Any:
    """Return what `parse_words` does for a recipe that is not yet written."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "recipe.yaml")
        path.write_text(yaml.safe_dump({**recipe}), encoding="utf-8")
        words = ["--config", str(path), *words]
        split_words(words)  # an unknown option is told before anything is looked at
        return parse_words(words)


def look_at(recipe: Mapping[str, Any]) -> Preview:
    """Return the preview of a recipe that is not yet written."""
    settings, *_ = _parse(recipe)
    (args, config, model_args, mixture), _ = parse(settings, 1)
    data = load_data(args, mixture, model_args, trusts=bool(settings.trust_remote_code))
    check_rows(args, data)
    return preview_recipe(args, config, model_args, load_reward_funcs(args, config), data)


def explained(recipe: Mapping[str, Any], reasons: Mapping[str, str]) -> str:
    """Return which settings of a recipe were guessed, and why, one on each line."""
    return "\n".join(
        ["Guessed:", *(f"  {name}: {recipe[name]!r} ({why})" for name, why in reasons.items())]
    )


def make_recipe(name: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the settings of a recipe for a data set, and why they are so; those that are given
    stay."""
    import torch

    given = dict(given)
    recipe = {"output_dir": given.pop("output_dir", None) or f"runs/{Path(name.rstrip('/')).stem}"}
    model = recipe["model_name_or_path"] = given.pop("model_name_or_path", None)
    if Path(name).suffix.lower() in SUFFIXES and not Path(name).exists():
        raise ValueError(not_found("File", name))
    if not model:
        raise ValueError(
            f"No model to train on {name}.{did_you_mean(name, shipped())} Add --model: a Hub id such"
            " as Qwen/Qwen3-0.6B, a folder, or trl_miner/arithmetic for a tiny one."
        )
    recipe["dataset_name"] = name
    run = SCORED | QUICK | (ON_A_GPU if torch.accelerator.is_available() else ON_A_CPU)
    if name in WORLDS or is_task(name):
        return recipe | run | given, {}
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
    first = train.select(range(min(FIRST_ROWS, len(train)))).to_list()
    settings, reasons = guess_settings(name, first, given)
    _guess_form(model, first, settings, reasons)
    settings |= {key: value for key, value in run.items() if key not in settings}
    return recipe | settings, reasons


def _guess_form(
    model: str, rows: Sequence[Any], settings: dict[str, Any], reasons: dict[str, str]
) -> None:
    """Choose the words around the questions as the model knows them, or what stands for them."""
    if {"prompt_template", "system_prompt"} & {*settings}:
        return
    layout = layout_of_settings(settings)
    asked = [layout.question(row) for row in rows]
    form = read_form(model)
    is_text = all(isinstance(question, str) for question in asked)
    if is_text and form is not None and form.is_known and form.is_own:
        # a world's questions end with a line
        words = {"prompt_template": f"{form.template}\n" if model in WORLDS else form.template,
                 "system_prompt": form.system}  # fmt: skip
        for setting, value in words.items():
            if value is not None:
                settings[setting], reasons[setting] = (
                    value,
                    "the form that the model was trained on",
                )
    elif (
        not any("box" in str(question) for question in asked)
        and (not layout.builds_prompts or not is_text)
        and "math_reward" in settings["reward_funcs"]
    ):
        settings["math_accept_unboxed"] = True
        reasons["math_accept_unboxed"] = "no prompt asks for a box"
