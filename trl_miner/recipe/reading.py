"""Read a recipe: one YAML file and a command line, by TRL's own parser."""

from __future__ import annotations

import argparse
import ast
import os
import re
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import yaml

from ..common.names import did_you_mean
from .files import find

if TYPE_CHECKING:
    from trl import DatasetMixtureConfig, ModelConfig

    from ..data.settings import DataArguments
    from ..trainer.config import MinerGRPOConfig
    from .settings import RunArguments

# For a file of one's own: a first look in minutes, where TRL's defaults would train three epochs.
OWN_FILE = {
    "held_out": 0.1,
    "score_samples": 4,
    "score_batch_size": 32,
    "num_generations": 8,
    "per_device_train_batch_size": 32,
    "max_steps": 100,
    "save_steps": 50,
    "logging_steps": 1,
}
# Where the settings are declared.
_SOURCES = {
    "trl": [
        "trainer/grpo_config.py",
        "trainer/base_config.py",
        "trainer/model_config.py",
        "scripts/utils.py",
    ],
    "transformers": ["training_args.py"],
    "trl_miner": ["trainer/config.py", "data/settings.py", "recipe/settings.py"],
}
_KINDS = {"int": "a whole number", "float": "a number", "string_to_bool": "true or false"}


@dataclass
class Recipe:
    """What was read."""

    path: Path | None  # of the recipe; None: a file of one's own, or the words alone say all
    given: dict[str, Any]  # the settings that the recipe and the words set, by name
    data: DataArguments
    run: RunArguments
    config: MinerGRPOConfig
    model: ModelConfig
    mixture: DatasetMixtureConfig | None  # None: one data set


def read(words: list[str]) -> Recipe:
    """Read the words behind a command: a recipe, or a file of one's own, and settings.

    The recipe's `env` goes into the environment before torch is loaded.

    Raises:
        ValueError: There is no such recipe, a name is no setting's, a value is wrong, or there is
            no device to train on.
    """
    path, given, settings, kinds = _parse(words)
    import torch

    if not settings.use_cpu and not torch.accelerator.is_available():
        raise ValueError(
            "No GPU found here. Add --use_cpu true to train on the CPU, or take a recipe that does,"
            " such as arithmetic/quick."
        )
    values = vars(settings)
    data, run, config, model, mixture = (
        kind(**{each.name: values[each.name] for each in fields(kind) if each.init})
        for kind in kinds
    )
    return Recipe(path, given, data, run, config, model, mixture if mixture.datasets else None)


def read_plain(words: list[str]) -> tuple[Path | None, dict[str, Any]]:
    """Return the recipe's file and all settings by name, defaults included, without building
    `MinerGRPOConfig`: it looks at no device, so that a recipe for eight GPUs can be read anywhere.

    Raises:
        ValueError: As `read`.
    """
    path, _, settings, _ = _parse(words)
    return path, vars(settings)


def _parse(
    words: list[str],
) -> tuple[Path | None, dict[str, Any], argparse.Namespace, tuple[Any, ...]]:
    """Return the recipe's file, what it and the words set, all settings, and the dataclasses that
    declare them."""
    target, words = _split_target(words)
    path = find(target) if target is not None else None
    given: dict[str, Any] = {}
    if path is not None:
        given = _read_yaml(path)
    elif target is not None:
        given = {**OWN_FILE, "dataset_name": target}
    for name, value in dict(given.pop("env", None) or {}).items():
        os.environ[name] = str(value)
    typed = [word[2:].partition("=")[0] for word in words if word.startswith("--")]
    _check_names([*given, *typed])
    if {"model", "model_name_or_path"}.isdisjoint(n.replace("-", "_") for n in (*given, *typed)):
        raise ValueError(
            "There is no model to train. Give a recipe (trl-miner train arithmetic/quick), or your"
            " data and a model (trl-miner train problems.csv --model Qwen/Qwen3-0.6B)."
        )

    from trl import DatasetMixtureConfig, ModelConfig  # torch is loaded, which takes seconds

    from ..data.settings import DataArguments
    from ..trainer.config import MinerGRPOConfig
    from .settings import RunArguments

    kinds = DataArguments, RunArguments, MinerGRPOConfig, ModelConfig, DatasetMixtureConfig
    parser = _make_parser(kinds)
    parser.set_defaults_with_config(**_as_words(given, parser))
    settings = parser.parse_args(words)
    if settings.output_dir is None:
        settings.output_dir = f"runs/{Path(target or 'run').stem}"
    actions = parser._option_string_actions
    names = [*given, *(actions[f"--{name}"].dest for name in typed)]
    return path, {name: getattr(settings, name) for name in names}, settings, kinds


def _split_target(words: list[str]) -> tuple[str | None, list[str]]:
    """Return the recipe or the data that words name, first or behind `--config`, and the others."""
    for place, word in enumerate(words):
        if word == "--config" and place + 1 < len(words):
            return words[place + 1], words[:place] + words[place + 2 :]
        if word.startswith("--config="):
            return word.partition("=")[2], words[:place] + words[place + 1 :]
    if words and not words[0].startswith("-"):
        return words[0], words[1:]
    return None, words


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        given = yaml.safe_load(path.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    if not isinstance(given, dict) or not all(isinstance(name, str) for name in given):
        raise ValueError(f"{path} must hold lines such as `max_steps: 100`.")
    return given


def _check_names(names: list[str]) -> None:
    """Raise ValueError for the first name that is no setting. They are read from the sources, as
    importing those takes seconds."""
    known = {"model", "env", "help"}
    for package, files in _SOURCES.items():
        spec = find_spec(package)
        assert spec and spec.origin
        for file in files:
            source = (Path(spec.origin).parent / file).read_text("utf-8")
            known |= _declared(ast.parse(source))
    for name in names:
        plain = name.replace("-", "_")
        if plain not in known and plain.removeprefix("no_") not in known:
            raise ValueError(f"There is no setting {name!r}.{did_you_mean(plain, known)}")


def _declared(module: ast.Module) -> set[str]:
    """Return the fields of the dataclasses of a module, but for those of TRL's `DatasetConfig`,
    which stand below `datasets`."""
    classes = [node for node in module.body if isinstance(node, ast.ClassDef)]
    return {
        node.target.id
        for each in classes
        if each.name != "DatasetConfig"
        for node in each.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def _make_parser(kinds: tuple[Any, ...]) -> Any:
    """Return TRL's parser, which raises ValueError in the place of a page of usage."""
    from trl import TrlParser

    class Parser(TrlParser):
        def error(self, message: str) -> NoReturn:
            raise ValueError(_retold(message))

    parser = Parser(kinds, allow_abbrev=False, add_help=False)
    parser.add_argument("--model", dest="model_name_or_path", default=argparse.SUPPRESS)
    return parser


def _as_words(given: dict[str, Any], parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Return the settings of a recipe as argparse takes defaults: numbers and truths as words,
    whose type it checks, and a single word in a list where a list is wanted."""
    words = dict(given)
    for action in parser._actions:
        value = given.get(action.dest)
        if value is not None and action.nargs == "+":
            words[action.dest] = value if isinstance(value, list) else [value]
        elif value is not None and getattr(action.type, "__name__", "") in _KINDS:
            words[action.dest] = str(value)
    return words


def _retold(message: str) -> str:
    """Return what argparse says as a sentence that starts with what the user typed."""
    if (words := message.removeprefix("unrecognized arguments: ")) != message:
        return f"Unexpected word {words!r}. A recipe, or a file of your own, stands first."
    if match := re.fullmatch(r"argument (--\w+)\S*: invalid (\w+) value: (.*)", message):
        option, kind, value = match.groups()
        return f"{option} is {value}. It must be {_KINDS.get(kind, kind)}."
    return f"{message.removeprefix('argument ')}."
