"""What a recipe may say, and reading one without starting anything."""

import argparse
import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trl import DatasetMixtureConfig, ModelConfig, ScriptArguments, TrlParser

from .config import MinerGRPOConfig
from .data.benchmarks import BENCHMARKS
from .data.worlds import WORLDS
from .grading.pool import CPU_SECONDS

OWN_REWARDS = ("math_reward", "choice_reward")
TRL_REWARDS = ("accuracy_reward", "reasoning_accuracy_reward", "think_format_reward", "get_soft_overlong_punishment")


@dataclass
class MinerScriptArguments(ScriptArguments):
    """What a recipe may set besides the trainer's, the model's and the data set mixture's arguments."""

    reward_funcs: list[str] = field(
        default_factory=lambda: ["math_reward"],
        metadata={
            "help": f"Reward functions: {', '.join(OWN_REWARDS)}, TRL's {', '.join(TRL_REWARDS)}, or dotted import "
            "paths such as my_lib.rewards.my_reward. The first one decides what is correct."
        },
    )
    rollout_func: str | None = field(
        default=None,
        metadata={
            "help": "Import path of a function that generates in the place of TRL: the `rollout_func` of GRPOTrainer."
        },
    )
    accelerate_config: str | None = field(
        default=None,
        metadata={
            "help": "For trl-miner train, launch and doctor: accelerate's configuration. A file, seen from the "
            "recipe's folder or the current one, or a name that TRL ships, such as zero3."
        },
    )
    soft_overlong_cache: int = field(
        default=256,
        metadata={
            "help": "For get_soft_overlong_punishment: completions longer than max_completion_length minus this lose "
            "reward, in tokens."
        },
    )
    math_accept_unboxed: bool = field(
        default=False,
        metadata={"help": "For math_reward: look for a final answer in completions without a \\boxed{} too."},
    )
    judge_seconds: float = field(
        default=CPU_SECONDS,
        metadata={"help": "Limit for judging one answer, in seconds of CPU; over it, the answer scores None."},
    )
    judge_workers: int | None = field(
        default=None,
        metadata={"help": "Processes that judge answers, for each training process. Default: its share of the CPUs."},
    )
    score_problems: int = field(
        default=0,
        metadata={"help": "Held-out problems to score before and after training; 0 scores none."},
    )
    score_samples: int = field(default=8, metadata={"help": "Completions sampled per held-out problem."})
    score_final_samples: int | None = field(
        default=None,
        metadata={"help": "Those after training, for Pass@K of a larger K. Default: as many as score_samples."},
    )
    score_steps: int = field(
        default=0,
        metadata={
            "help": "Score the held-out problems during training too, every so many optimizer steps; 0: only before "
            "and after. Changes nothing in the training but its duration."
        },
    )
    score_benchmark: str | None = field(
        default=None,
        metadata={
            "help": f"Score problems of a benchmark ({', '.join(BENCHMARKS)}) instead of the data set's test split: "
            "its name, or NAME=PATH of a local file, also of one of your own with the columns problem and answer."
        },
    )
    score_keep_best: bool = field(
        default=False,
        metadata={"help": "Keep the model with the highest Pass@1 so far in the folder `best` of output_dir."},
    )
    base_model_steps: int | None = field(
        default=None,
        metadata={
            "help": f"For {', '.join(WORLDS)}: SFT steps of the base model, fewer for a quick look. Default: all."
        },
    )

    quiet: bool = field(
        default=False,
        metadata={"help": "Show no progress, no line per log and no closing lines: scores, warnings and errors only."},
    )

    def __post_init__(self) -> None:
        for name, least, hint in (
            ("score_problems", 0, "0 scores none"),
            ("score_samples", 1, "The default is 8"),
            ("score_final_samples", 1, "Leave it out for score_samples"),
            ("score_steps", 0, "0 scores before and after training only"),
        ):
            if getattr(self, name) is not None and getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}: got {getattr(self, name)}. {hint}.")
        for name in ("score_steps", "score_benchmark", "score_keep_best"):
            if getattr(self, name) and not self.score_problems:
                raise ValueError(
                    f"{name} needs problems to score: got {name}={getattr(self, name)} and score_problems=0. Set "
                    f"score_problems, or leave {name} out."
                )
        name, equals, path = (self.score_benchmark or "").partition("=")
        if name and not path and name not in BENCHMARKS:
            raise ValueError(
                f"score_benchmark must name a benchmark, or be NAME=PATH: got {self.score_benchmark!r}. Known: "
                f"{', '.join(BENCHMARKS)}."
            )


PARSED_TYPES = (MinerScriptArguments, MinerGRPOConfig, ModelConfig, DatasetMixtureConfig)


def make_parser() -> TrlParser:
    """TRL's parser for all that a recipe, or a command line of the training, may say."""
    return TrlParser(PARSED_TYPES, prog="trl-miner train")


def check_recipe(arguments: Sequence[str], parser: TrlParser) -> None:
    """Raise for a recipe that is not there, is no mapping, or has a key that nothing takes.

    TRL hands unknown keys on to `accelerate launch`, where a typo fails far from its cause, or passes unnoticed.
    """
    import yaml

    if "--config" not in arguments:
        return
    position = list(arguments).index("--config") + 1
    if position == len(arguments):
        raise ValueError("--config must be followed by the path of a recipe: got nothing.")
    path = Path(arguments[position])
    if not path.is_file():
        raise ValueError(f"--config must name a recipe: got {path}, which is not a file. Try recipes/arithmetic/.")
    recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(recipe, dict):
        raise ValueError(f"{path} must hold a mapping of settings: got {type(recipe).__name__}.")
    known = {action.dest for action in parser._actions} | {"env"}
    for key in recipe:
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f"Did you mean '{close[0]}'?" if close else "Settings of accelerate go on the command line."
            raise ValueError(f"{path}: unknown key '{key}'. {hint}")


def read_recipe(path: str | Path, overrides: Sequence[str] = ()) -> argparse.Namespace:
    """The settings of a recipe, defaults included, by name. Unlike the trainer's own reading it looks at no device and
    joins no process group, so that a recipe for eight GPUs can be read anywhere.

    Args:
        path: The recipe.
        overrides: As on a command line, `["--learning_rate", "1e-6"]`.

    Returns:
        One namespace with every field of `PARSED_TYPES`; what `MinerGRPOConfig` would derive is still None.

    Raises:
        ValueError: No recipe, an unknown key, or an argument that no option takes.
    """
    import yaml

    parser = make_parser()
    check_recipe(["--config", str(path)], parser)
    recipe = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    recipe.pop("env", None)
    parser.set_defaults_with_config(**recipe)
    settings, left = parser.parse_known_args(list(overrides))
    if left:
        raise ValueError(f"Every argument must belong to an option of the training: got {' '.join(left)}.")
    return settings
