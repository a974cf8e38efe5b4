"""The options of a training, its own and those of accelerate's launcher, kept in a file of the cache.

To ask TRL for them takes seconds. With the file a wrong recipe or command line costs less than one, and so does
`trl-miner train --help`. The file is made again for other versions.
"""

import hashlib
import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from .data.base_model import cache_folder
from .importing import did_you_mean
from .progress import Progress
from .recipe_files import find_recipe
from .redaction import learn
from .reward_functions import check_reward_name
from .runs.files import read_yaml, write_whole
from .setting import Setting, check_settings

_LIBRARIES = ("trl", "transformers", "accelerate", "peft")
HELP = "trl-miner train --help all"
_UNSHOWN = ("none", "any")
_CONFIG = Setting("config", ("str",), flags=("--config",))


@dataclass(frozen=True)
class Options:
    """The settings of a training by name, and the options of accelerate's launcher."""

    training: Mapping[str, Setting]
    launcher: Mapping[str, Setting]

    def split(self, words: Sequence[str]) -> tuple[list[str], list[str], dict[str, Any]]:
        """Split a command line into the training's words and the launcher's; return the training's values, too.

        Raises:
            ValueError: A word belongs to no option, an option is unknown, or its value is missing or of a wrong type.
        """
        own: dict[str, Setting] = {flag: s for s in (_CONFIG, *self.training.values()) for flag in s.flags}
        others = {flag: setting for setting in self.launcher.values() for flag in setting.flags}
        starts = [place for place, word in enumerate(words) if _is_option(word)]
        if stray := words[: starts[0] if starts else len(words)]:
            raise ValueError(
                f"Every argument must belong to an option: got {stray[0]!r} alone.{_stray_hint(stray[0])}"
            )
        training: list[str] = []
        launcher: list[str] = []
        values: dict[str, Any] = {}
        for start, end in zip(starts, [*starts[1:], len(words)], strict=False):
            option, equals, first = words[start].partition("=")
            given = [*([first] if equals else []), *words[start + 1 : end]]
            flag, is_own, setting = _find(option, own, others)
            _check_number(flag, setting, given)
            value = _value(setting, given, flag)
            if is_own:
                values[setting.name] = value
            (training if is_own else launcher).extend([f"{flag}{equals}{first}", *words[start + 1 : end]])
        return training, launcher, values

    def read(self, words: Sequence[str]) -> dict[str, Any]:
        """Return the settings of a command line and of the recipe that it names; raise ValueError as `split` does."""
        values = self.split(words)[2]
        recipe: dict[str, Any] = {}
        if "config" in values:
            path = find_recipe(values["config"])
            recipe = read_yaml(path)
            learn(recipe)  # errors quote values
            check_settings(recipe, self.training, path)
        return recipe | values

    def check(self, words: Sequence[str]) -> None:
        """Raise ValueError for a command line, or a recipe that it names, that cannot be a training's."""
        values = self.read(words)
        for reward in values.get("reward_funcs") or ():
            check_reward_name(reward)
        for name, others in (("model_name_or_path", ()), ("dataset_name", ("datasets",))):
            if not any(values.get(key) for key in (name, *others)):
                raise ValueError(
                    f"A training needs a recipe, or --model_name_or_path and --dataset_name: got no {name}. Try "
                    f"trl-miner train --config arithmetic/miner; `trl-miner recipes` lists all."
                )


def _is_option(word: str) -> bool:
    if not word.startswith("-") or len(word) == 1 or " " in word.partition("=")[0]:  # as argparse has it
        return False
    return not word[1:].replace(".", "").replace("e-", "").isdigit()


def _stray_hint(word: str) -> str:
    return (
        f" Did you mean --config {word}?" if "/" in word or word.endswith(".yaml") else " See trl-miner train --help."
    )


def _find(option: str, own: Mapping[str, Setting], others: Mapping[str, Setting]) -> tuple[str, bool, Setting]:
    """Return an option, perhaps abbreviated, in full, whether it is the training's, and its setting."""
    for is_own, flags in ((True, own), (False, others)):
        if option in flags:
            return option, is_own, flags[option]
    for is_own, flags in ((True, own), (False, others)):
        found = [flag for flag in flags if option.startswith("--") and flag.startswith(option)]
        if len({flags[flag].name for flag in found}) == 1:
            return found[0], is_own, flags[found[0]]
    hint = did_you_mean(option, [*own, *others]) or f" See {HELP}."
    raise ValueError(f"Unknown option {option}.{hint}")


def _check_number(option: str, setting: Setting, given: Sequence[str]) -> None:
    """Check how many values follow an option."""
    by_word: dict[Any, tuple[int, float]] = {None: (1, 1), "?": (0, 1), "+": (1, math.inf), "A...": (0, math.inf)}
    nargs = 0 if _is_negation(option, setting) else setting.nargs
    least, most = by_word.get(nargs) or (int(nargs or 0), int(nargs or 0))
    if len(given) < least:
        hint = setting.hint() or (f" Write {option} true." if "bool" in setting.kinds else f" See {HELP}.")
        raise ValueError(f"{option} must be followed by a value: got nothing.{hint}")
    if len(given) > most:
        stray = given[int(most)]
        raise ValueError(f"Every argument must belong to an option: got {stray!r} alone, behind {option}.")


def _is_negation(option: str, setting: Setting) -> bool:
    return setting.nargs == "?" and option.startswith(("--no_", "--no-"))


def _value(setting: Setting, given: Sequence[str], option: str) -> Any:
    """Return the value of an option, checked."""
    if not given:
        return not _is_negation(option, setting)
    if setting.nargs == "+":
        return list(given)
    # A JSON text stands for a mapping, which the training parses; inf is how a command line says None
    is_free = setting.kinds == ("dict", "none") or ("none" in setting.kinds and given[0].lower() in ("none", "null"))
    return given[0] if is_free else setting.convert(given[0])


@lru_cache(1)
def load() -> Options:
    """Return the options of the installed versions, from the cache if it has them."""
    key = _key()
    folder = cache_folder()
    path = folder / f"options-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return Options(
            *({name: _setting(s) for name, s in content[part].items()} for part in ("training", "launcher"))
        )
    except (OSError, ValueError, KeyError, TypeError):  # not there, or damaged
        options = _make()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(asdict(options), default=str))
    except OSError:  # it is made again next time
        pass
    return options


def _setting(content: Mapping[str, Any]) -> Setting:
    lists: dict[str, Any] = {name: tuple(content[name]) for name in ("kinds", "choices", "flags")}
    return Setting(**{**content, **lists})


def _key() -> str:
    """Return what decides the options: the versions of the libraries, and when this package last changed."""
    package = Path(__file__).parent
    newest = max(path.stat().st_mtime_ns for path in package.rglob("*.py"))
    versions = []
    for name in _LIBRARIES:
        try:
            versions.append(version(name))
        except PackageNotFoundError:
            versions.append("none")
    return json.dumps([str(package), newest, versions])


def _make() -> Options:
    with Progress("reading TRL's settings, once for this version", unit="", leave=False):
        from accelerate.commands.launch import launch_command_parser

        from .recipe import make_parser, settings_of

        launcher = {}
        for action in launch_command_parser()._actions:
            if action.option_strings and action.dest != "help":
                flags, nargs = tuple(action.option_strings), action.nargs
                kinds = ("int",) if action.type is int else ("any",)
                launcher[flags[-1]] = Setting(action.dest, kinds, help=action.help or "", flags=flags, nargs=nargs)
        return Options(settings_of(make_parser()), launcher)


def help_text(options: Options, *, everything: bool = False) -> str:
    """Return the help of `trl-miner train`: our settings in groups, and with `everything` all others, too."""
    groups: dict[str, list[Setting]] = {}
    for setting in options.training.values():
        groups.setdefault(setting.group, []).append(setting)
    rest = [*groups.pop("", []), *options.launcher.values()]
    lines = [
        "usage: trl-miner train --config RECIPE [options]",
        "",
        "Train a recipe through accelerate: trl-miner train --config arithmetic/miner --max_steps 10",
        "`trl-miner recipes` lists the recipes. An option overrides the recipe's key of the same name.",
        "",
        f"  --help all  show {len(rest)} more options, those of TRL, transformers and accelerate, such as "
        "--learning_rate,",
        "              --max_steps, --output_dir, --seed, --resume_from_checkpoint and --num_processes",
        "  --traceback show where an error arose",
    ]
    for heading, settings in groups.items():
        lines += ["", f"Settings {heading}:", *(line for setting in settings for line in _entry(setting))]
    if everything:
        lines += ["", "Settings of TRL and transformers, and options of accelerate's launcher:"]
        lines += [line for setting in rest for line in _entry(setting)]
    return "\n".join(lines)


def _entry(setting: Setting) -> list[str]:
    """Return the lines of the help on a setting."""
    flag = max((flag for flag in setting.flags if not flag.startswith("--no_")), key=lambda flag: flag.count("_"))
    kind = "|".join(map(str, setting.choices)) or " or ".join(kind for kind in setting.kinds if kind not in _UNSHOWN)
    default = f" (default: {setting.default})" if setting.default not in ("", "==SUPPRESS==") else ""
    text = " ".join(f"{setting.help % {'default': setting.default}}{default}".split()) if setting.help else default
    return [f"  {flag} {kind}".rstrip(), *textwrap.wrap(text, 106, initial_indent=" " * 8, subsequent_indent=" " * 8)]
