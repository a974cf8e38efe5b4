"""The settings of a recipe: read them without starting anything, and load the functions that they
name."""

import argparse
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, NoReturn, get_type_hints

import trl
import trl.rewards
from accelerate.commands.launch import launch_command_parser
from transformers import AutoTokenizer
from trl import DatasetMixtureConfig, ModelConfig, ScriptArguments, TrlParser

from .. import rewards
from ..common.errors import retold
from ..common.importing import did_you_mean, import_object
from ..common.network import not_loaded
from ..common.redaction import learn
from ..common.setting import NONE, alternatives, check_limits, convert, setting
from ..data.base_model import find_model
from ..data.benchmarks import BENCHMARKS, is_known, read_entry
from ..data.guessing import layout_of_settings
from ..data.layout import Layout
from ..data.prompt_form import style_of
from ..data.prompts import STYLES, PromptForm, Style
from ..data.reasoning_gym import TRAIN_SIZE, is_task, read_parts
from ..data.settings import DATA_SETTINGS
from ..data.worlds import WORLDS
from ..evaluation.seeded_sampling import DEFAULT_BATCH_SIZE
from ..grading.pool import CPU_SECONDS
from ..runs.files import read_yaml
from ..tools import TOOL_SECONDS
from ..trainer.config import RunConfig
from ..trainer.reward_functions import OWN_REWARDS, TRL_REWARDS
from .files import find_recipe, with_recipe_file
from .setting_groups import grouped


@dataclass
class MinerScriptArguments(ScriptArguments):
    """The settings of a recipe, or of the command line, beyond those of the trainer, the model and
    the mixture of data sets."""

    asynchronous: bool = setting(
        False,
        "Train with `MinerAsyncGRPOTrainer`, which generates while it trains, on TRL 1.16. The"
        " settings are then those of `MinerAsyncGRPOConfig`.",
    )
    dataset_revision: str | None = setting(
        None, "Branch, tag or commit of the data set on the Hub."
    )
    dataset_prompt_column: str = setting("prompt", DATA_SETTINGS["dataset_prompt_column"])
    dataset_solution_column: str = setting("solution", DATA_SETTINGS["dataset_solution_column"])
    dataset_options_column: str = setting("options", DATA_SETTINGS["dataset_options_column"])
    options_columns: list[str] | None = setting(None, DATA_SETTINGS["options_columns"])
    context_columns: list[str] | None = setting(None, DATA_SETTINGS["context_columns"])
    first_option: int | None = setting(None, DATA_SETTINGS["first_option"], at_least=0)
    answer_pattern: str | None = setting(None, DATA_SETTINGS["answer_pattern"])
    answer_after: str | None = setting(None, DATA_SETTINGS["answer_after"])
    decimal_comma: bool | None = setting(None, DATA_SETTINGS["decimal_comma"])
    system_prompt: str | None = setting(
        None, "System prompt. If it is set, the prompt column holds questions."
    )
    prompt_template: str | None = setting(
        None,
        "Template with `{question}` in it: the whole prompt as plain text, or the user's message."
        " If it is set, the prompt column holds questions.",
    )
    task_config: dict[str, Any] | str | None = setting(
        None,
        "Settings of the family in `dataset_name: reasoning_gym/FAMILY`, such as `{max_terms: 3}`.",
    )
    tasks: list[Any] | None = setting(
        None,
        "Families that `dataset_name: reasoning_gym` mixes, as a list of"
        " `{name: chain_sum, weight: 2, config: {max_terms: 3}}`.",
    )
    task_size: int | None = setting(
        None,
        f"How many training problems to make with reasoning-gym (default: {TRAIN_SIZE}) or of an"
        " embedded world (default: its whole training set).",
        at_least=1,
    )
    task_seed: int = setting(0, "Seed that decides which problems reasoning-gym makes.")
    prompt_style: str = setting(
        "auto",
        "Form of the prompts that are built from questions: `plain` text, `chat` messages, or"
        " `auto`, which takes the form that the model was trained with, or else guesses it from the"
        " model's name and chat template. Prompts in a data set stay as they are.",
        one_of=("auto", *STYLES),
    )
    reward_funcs: list[str] | None = setting(
        None,
        f"Reward functions: {', '.join(OWN_REWARDS)}; TRL's {', '.join(TRL_REWARDS)}; or import"
        " paths such as `my_lib.rewards.my_reward`. Of several, `correct_reward_func` names the"
        " verifier. The default is `task_reward` for problems of reasoning-gym, and `math_reward`"
        " for all others.",
    )
    rollout_func: str | None = setting(
        None,
        "Import path of a function that generates the completions: `rollout_func` of `GRPOTrainer`.",
    )
    tools: list[str] | None = setting(
        None,
        "Import paths of functions that the model may call while it answers: `tools` of"
        " `GRPOTrainer`. `max_tool_calling_iterations` limits how often.",
    )
    environment_factory: dict[str, Any] | str | None = setting(
        None,
        "Import path of a class whose methods are tools that share a state, with one object per"
        " completion: `environment_factory` of `GRPOTrainer`. Of several, given by name, the column"
        " `environment` chooses one.",
    )
    tool_seconds: float = setting(
        TOOL_SECONDS,
        "Seconds after which a call of a tool is ended and counts as failed.",
        at_least=0.01,
    )
    accelerate_config: str | None = setting(
        None,
        "Configuration of accelerate for `trl-miner train`, `launch` and `doctor`: a file, relative"
        " to the recipe's folder or the current one, or the name of one that TRL ships, such as"
        " `zero3`.",
    )
    soft_overlong_cache: int = setting(
        256,
        "How many tokens at the end of `max_completion_length` cost reward, with"
        " `get_soft_overlong_punishment`.",
    )
    math_accept_unboxed: bool = setting(
        False,
        "Let `math_reward` also look for a final answer in completions without a \\boxed{}. An"
        " answer that the completion denies, doubts or takes back does not count.",
    )
    judge_seconds: float = setting(
        CPU_SECONDS,
        "CPU seconds for the verification of one answer. An answer that needs more counts as wrong.",
        at_least=0.01,
    )
    judge_workers: int | None = setting(
        None,
        "Processes that verify answers, for each training process. By default each gets its share"
        " of the CPUs, at most 8.",
        at_least=1,
    )
    watchdog_seconds: float | None = setting(
        None,
        "End a run that has made no progress for this many seconds, with an error that names the"
        " part and the step; 0 is never. The cause may be a vLLM server that does not answer, a"
        " process that is stopped or dead, or a generation or reward function that takes longer"
        " than this. By default a run ends if its server or a process has not answered for 300"
        " seconds, and you get a warning if all of them answer but nothing progresses.",
        at_least=0,
    )
    held_out: float | str | None = setting(  # in this order: a command line gives a text
        0,
        "Problems to score before and after the training, which are not trained on. A number (below"
        " 1: a share) takes them from the data set's test split, or splits them off if it has none."
        f" A name takes a benchmark of `trl-miner eval`: {', '.join(BENCHMARKS)},"
        " `reasoning_gym/FAMILY`, or `NAME=PATH` for a file of your own; `NAME:200` takes the first"
        " 200 problems. 0 is none.",
    )
    score_samples: int = setting(8, "Completions per held-out problem.", at_least=1)
    score_final_samples: int | None = setting(
        None,
        "Completions per held-out problem after the training, for Pass@K with a larger K. The"
        " default is `score_samples`.",
        at_least=1,
    )
    score_batch_size: int = setting(
        DEFAULT_BATCH_SIZE,
        "Completions of held-out problems that a process generates at once. Fewer need less memory,"
        " and change the scores by rounding at most.",
        at_least=1,
    )
    score_steps: int = setting(
        0,
        "Also score the held-out problems every this many optimizer steps; 0 is only before and"
        " after the training. This takes time, and changes nothing else in the training.",
        at_least=0,
    )
    keep_best: bool = setting(
        False,
        "With `score_steps`: save the model with the best Pass@1 on held-out problems so far in"
        " `output_dir/best`. This is the best of several scores, so new problems may score lower.",
    )
    early_stop: int = setting(
        0,
        "With `score_steps`: end the training after this many scores in a row without a better"
        " Pass@1; 0 is never.",
        at_least=0,
    )
    quiet: bool = setting(False, "Show only scores, warnings and errors, and no progress.")

    def __post_init__(self) -> None:
        check_limits(self)
        self._read_held_out()
        for name in ("keep_best", "early_stop"):
            if getattr(self, name) and not (self.score_steps and self.held_out):
                raise ValueError(
                    f"{name} needs scores during the training: got score_steps {self.score_steps}"
                    f" and held_out {self.held_out}. Set both, or leave {name} out."
                )
        layout_of(self, PromptForm("plain", self.system_prompt, self.prompt_template))
        if is_task(self.dataset_name):
            read_parts(str(self.dataset_name), self.task_config, self.tasks)
        elif self.tasks or self.task_config or (self.task_size and self.dataset_name not in WORLDS):
            raise ValueError(
                "tasks, task_config and task_size are for problems that are made: got dataset_name"
                f" {self.dataset_name}. Leave them out."
            )

    @property
    def held_out_benchmark(self) -> str:
        """The benchmark that `held_out` names, as it is written there; empty: none."""
        return self.held_out if isinstance(self.held_out, str) else ""

    @property
    def held_out_size(self) -> float:
        """The number of problems that `held_out` asks for, or below 1 their share; 0 where it names
        a benchmark."""
        return 0 if isinstance(self.held_out, str) or self.held_out is None else self.held_out

    def _read_held_out(self) -> None:
        """Make `held_out` a number where it is one. Raise ValueError if it is neither that nor a
        benchmark."""
        text = str(self.held_out or 0)
        try:
            number = float(text)
        except ValueError:
            if is_known(read_entry(text)):
                return
            raise ValueError(
                f"No benchmark named {text!r} for held_out.{did_you_mean(text, BENCHMARKS)} Give a"
                " number of problems, a share below 1, NAME=PATH of a file, or a benchmark:"
                f" {', '.join(BENCHMARKS)}."
            ) from None
        if not (0 <= number < 1 or (number >= 1 and number.is_integer())):
            raise ValueError(
                f"held_out must be a whole number, or a share between 0 and 1: got {text}."
            )
        self.held_out = int(number) if number.is_integer() else number


_SCRIPT = "trl_miner.train"
PARSED_TYPES: tuple[type, ...] = (
    MinerScriptArguments,
    RunConfig,
    ModelConfig,
    DatasetMixtureConfig,
)


class _Parser(TrlParser):
    """TRL's parser, with the recipe that the words name, and an error in the place of a page of
    usage."""

    recipe: Mapping[str, Any] = {}
    refused: Collection[str] = ()  # settings of the other trainer

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{retold(message)} See trl-miner train --help all.")


def make_parser(words: Sequence[str] = ()) -> _Parser:
    """Return TRL's parser for everything that a recipe, or the training's command line, may set.

    Where `words`, or the recipe that they name, say `asynchronous`, they are the settings of that
    trainer. The recipe is checked: TRL passes unknown keys on to `accelerate launch`, where a typo
    may go unnoticed.

    Raises:
        ValueError: The recipe is wrong. The parser raises it, too, where argparse would print its
            usage and exit.
    """
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--asynchronous", nargs="?", const="true")
    finder.add_argument("--config", nargs="?")
    given, _ = finder.parse_known_args([*words])
    path = find_recipe(given.config) if given.config else None
    recipe = read_yaml(path) if path else {}
    learn(recipe)
    kinds, refused = PARSED_TYPES, set[str]()
    if str(given.asynchronous or recipe.get("asynchronous")).lower() in ("true", "yes", "1"):
        try:
            from ..trainer.async_config import REFUSED, RecipeConfig
        except ImportError as error:
            raise ValueError(f"asynchronous: true: {error}") from error
        kinds, refused = (
            tuple(RecipeConfig if kind is RunConfig else kind for kind in kinds),
            REFUSED,
        )
    parser = _Parser(kinds, prog="trl-miner train", allow_abbrev=False)
    parser.recipe, parser.refused = recipe, refused
    try:
        check_recipe(parser)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return parser


def check_recipe(parser: _Parser) -> None:
    """Raise ValueError if the recipe of a parser has an unknown key, or a value of the wrong
    type."""
    hints = {
        name: hint for kind in parser.dataclass_types for name, hint in get_type_hints(kind).items()
    }
    # TRL's annotation leaves out what its documentation allows
    hints |= {"scale_rewards": str | bool, "env": dict}
    # the option itself after --no_NAME
    actions = {action.dest: action for action in reversed(parser._actions)}
    actions["env"] = argparse.Action([], "env")
    for name, value in parser.recipe.items():
        action = actions.get(name)
        if action is None or name not in hints:
            _refuse_other(name, parser)
            hint = (
                did_you_mean(str(name), actions)
                or " Settings of accelerate go on the command line."
            )
            raise ValueError(f"unknown key '{name}'.{hint}")
        if value is None and action.default is None:
            continue
        kind = hints[name]
        if action.choices:
            chosen: Any = Literal[*action.choices]
            kind = chosen | None if NONE in alternatives(kind) else chosen
        convert(name, value, kind)
    for name in parser.recipe.get("env") or ():
        if str(name).startswith("HF_") or name == "CUDA_VISIBLE_DEVICES":
            raise ValueError(
                f"env comes too late for {name}: it has been read by then. Export it before the"
                " command."
            )


def _refuse_other(name: Any, parser: _Parser) -> None:
    """Raise ValueError for a setting of the other trainer."""
    if name in parser.refused:
        raise ValueError(
            f"{name} has no effect with asynchronous: true: it belongs to the synchronous trainer."
        )


def parse_words(words: Sequence[str]) -> tuple[argparse.Namespace, list[str], _Parser]:
    """Return the settings of a training's command line by name, its recipe's and defaults included,
    the words that belong to none of them, and the parser.

    Unlike the training's own parsing this looks at no device and joins no process group, so that a
    recipe for eight GPUs can be read anywhere. Values that `RunConfig` would derive are still
    None.
    """
    words = with_recipe_file(words)
    parser = make_parser(words)
    parser.set_defaults_with_config(
        **{name: value for name, value in parser.recipe.items() if name != "env"}
    )
    parser.add_argument("--config")
    settings, rest = parser.parse_known_args(words)
    for name in parser.refused:  # what they amount to
        setattr(settings, name, getattr(parser.dataclass_types[1], name))
    if parser.refused:
        settings.use_vllm = not settings.use_cpu
        budget = (
            settings.vllm_max_model_length
            if settings.token_budget is None
            else settings.token_budget
        )
        settings.max_tokens_per_micro_batch = budget if budget and budget > 0 else None
    return settings, rest, parser


def read_recipe(path: str | Path, overrides: Sequence[str] = ()) -> argparse.Namespace:
    """Return the settings of a recipe by name, as `parse_words` does.

    `overrides` are settings as on a command line: `["--learning_rate", "1e-6"]`.
    """
    settings, unknown, parser = parse_words(["--config", str(path), *overrides])
    refuse_unknown(unknown, parser)
    return settings


def refuse_unknown(words: Sequence[str], parser: _Parser, others: Collection[str] = ()) -> None:
    """Raise ValueError for words of a command line that belong to no option of the training, nor to
    `others`."""
    if not words:
        return
    word = words[0].partition("=")[0]
    _refuse_other(word.removeprefix("--").replace("-", "_"), parser)
    if not word.startswith("-"):
        raise ValueError(
            f"Unexpected argument {word!r}. A recipe follows --config, or stands first."
        )
    hint = (
        did_you_mean(word, [*parser._option_string_actions, *others])
        or " See trl-miner train --help all."
    )
    raise ValueError(f"Unknown option {word}.{hint}")


def split_words(words: Sequence[str]) -> tuple[argparse.Namespace, list[str], list[str]]:
    """Split a command line of the training: its settings, its own words, and those of accelerate's
    launcher.

    Raises:
        ValueError: A word belongs to no option, an option is unknown, or its value is missing or of
            a wrong type.
    """
    words = with_recipe_file(words)
    settings, rest, parser = parse_words(words)
    launcher = launch_command_parser()
    launcher.error = parser.error
    launch, unknown = launcher.parse_known_args([*rest, _SCRIPT])
    refuse_unknown(unknown, parser, launcher._option_string_actions)
    if launch.training_script != _SCRIPT:
        refuse_unknown([launch.training_script], parser)
    flags = {word for word in rest if word.startswith("-")}
    of_training: list[str] = []
    is_own = True
    for word in words:
        is_own = word not in flags if word.startswith("-") else is_own
        if is_own:
            of_training.append(word)
    return settings, of_training, rest


def help_on_all_settings() -> str:
    """Return a line of help for each setting: those of this package by group, then the others."""
    # the option itself after --no_NAME
    actions = {action.dest: action for action in reversed(make_parser()._actions)}
    del actions["help"]
    groups = {
        title: [setting.name for setting in settings]
        for title, settings in grouped(RunConfig, MinerScriptArguments).items()
    }
    ours = {name for names in groups.values() for name in names}
    groups["Settings of TRL and transformers"] = sorted(actions.keys() - ours)
    shown = argparse.ArgumentParser(
        usage="trl-miner train RECIPE [options]",
        add_help=False,
        formatter_class=lambda prog: argparse.ArgumentDefaultsHelpFormatter(
            prog, max_help_position=8
        ),
    )
    for title, names in groups.items():
        add = shown.add_argument_group(title).add_argument
        for action in (actions[name] for name in names):
            value = {"metavar": "VALUE"} if action.choices is None else {"choices": action.choices}
            add(f"--{action.dest}", help=action.help, default=action.default, **value)
    return shown.format_help()


def as_parsed(kind: Any, settings: Mapping[str, Any]) -> Any:
    """Return what the parser makes of settings by name for one of `PARSED_TYPES`, or for a class of
    its fields."""
    return kind(
        **{
            field.name: settings[field.name]
            for field in fields(kind)
            if field.init and field.name in settings
        }
    )


def load_reward_funcs(args: Any, config: Any) -> list[Callable[..., Any]]:
    """Return the functions that `reward_funcs` of `args`, the `MinerScriptArguments`, names."""
    return [load_reward_func(name, args, config) for name in reward_names(args)]


def reward_names(args: Any) -> list[str]:
    """Return the `reward_funcs` of a recipe, or the one that suits its data set; an environment has
    its own."""
    if args.reward_funcs or args.environment_factory:
        return args.reward_funcs or []
    return ["task_reward" if is_task(args.dataset_name) else "math_reward"]


def data_settings(args: Any) -> dict[str, Any]:
    """Return those of `DATA_SETTINGS` that a recipe sets."""
    defaults = {each.name: each.default for each in fields(MinerScriptArguments)}
    settings = {name: getattr(args, name, None) for name in DATA_SETTINGS}
    given = {name: value for name, value in settings.items() if value not in (None, defaults[name])}
    # which tells whether the others are meant for a file
    return given and given | {"dataset_solution_column": args.dataset_solution_column}


def layout_of(args: Any, form: PromptForm) -> Layout:
    """Return what a recipe says of its data set's columns and prompts."""
    return layout_of_settings(vars(args), form=form)


def prompt_form(args: Any, model_args: Any, *, trusts: bool = False) -> PromptForm:
    """Return the form of the prompts that are built for a model, as TRL's `ModelConfig` names it.

    With `trusts`, code of the model's repository may run.
    """
    model, revision = model_args.model_name_or_path, model_args.model_revision
    style: Style = "chat" if args.prompt_style == "chat" else "plain"
    # no model: an error that is told later
    if args.prompt_style == "auto" and model and model not in WORLDS:
        style = style_of(model, load_tokenizer(model, revision, trusts=trusts), revision)
    return PromptForm(style, args.system_prompt, args.prompt_template)


def named_code(settings: Any) -> list[str]:
    """Return what of a recipe's settings names code by import path or on the Hub, which is run when
    the recipe is checked or trained: "reward_funcs my_lib.f"."""
    named = []
    methods = "advantage_estimator all_right all_wrong"
    for kind in f"reward_funcs tools environment_factory rollout_func {methods}".split():
        value = getattr(settings, kind)
        paths = value if isinstance(value, list) else [value]
        named += [f"{kind} {path}" for path in map(str, paths) if "." in path]
    if settings.trust_remote_code:
        named.append(f"trust_remote_code of {settings.model_name_or_path}")
    if "/" in str(settings.attn_implementation):  # a kernel on the Hub
        named.append(f"attn_implementation {settings.attn_implementation}")
    return named


def load_tokenizer(model: str, revision: str | None = None, *, trusts: bool = False) -> Any:
    """Return the tokenizer of a model. With `trusts`, code of its repository may run.

    Raises:
        ValueError: There is no such model here, or it has no tokenizer.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            find_model(model), revision=revision, trust_remote_code=trusts
        )
    except Exception as error:  # a damaged file may raise anything
        raise ValueError(not_loaded("model", model, error, revision)) from error
    # where there is none, transformers makes one that reads every prompt as no tokens
    if len(tokenizer) - len(tokenizer.all_special_tokens) < 2:
        raise ValueError(
            f"The tokenizer of {model} has {len(tokenizer)} tokens. Put its files, such as"
            " tokenizer.json, into the folder of the model."
        )
    return tokenizer


def load_reward_func(name: str, args: Any, config: Any = None) -> Callable[..., Any]:
    """Return a reward function of a recipe by its name; `config` has the length of completions, for
    TRL's penalty."""
    if name == "get_soft_overlong_punishment":
        return trl.rewards.get_soft_overlong_punishment(
            config.max_completion_length, args.soft_overlong_cache
        )
    if name in TRL_REWARDS:
        return getattr(trl.rewards, name)
    if name == "math_reward" and (args.math_accept_unboxed or args.decimal_comma):
        options = {
            "accept_unboxed": args.math_accept_unboxed,
            "decimal_comma": bool(args.decimal_comma),
        }
        # wrapped, so that it keeps the name under which TRL logs rewards
        return functools.wraps(rewards.math_reward)(
            functools.partial(rewards.math_reward, **options)
        )
    if name in OWN_REWARDS:
        return getattr(rewards, name)
    if "." not in str(name):
        names = OWN_REWARDS + TRL_REWARDS
        raise ValueError(
            f"No reward function named {name!r}.{did_you_mean(str(name), names)} Known:"
            f" {', '.join(names)}; or the import path of your own, such as my_lib.rewards.{name}."
        )
    function = import_object("reward_funcs", name)
    if isinstance(function, type) or not callable(function):
        is_a = "a class" if isinstance(function, type) else f"a {type(function).__name__}"
        raise ValueError(f"reward_funcs must name functions: got {name}, {is_a}. Name a function.")
    return function
