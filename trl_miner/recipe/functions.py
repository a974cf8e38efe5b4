"""What a recipe names by a word or an import path: reward functions, tools, environments."""

from collections.abc import Callable
from functools import partial, update_wrapper
from typing import Any

from ..common.names import did_you_mean, import_object
from .reading import Recipe

_OVERLONG = "get_soft_overlong_punishment"


def load_rewards(recipe: Recipe, *, has_options: bool) -> list[Callable[..., Any]]:
    """Return the reward functions of a recipe: ours and TRL's by name, others by import path.

    Raises:
        ValueError: One cannot be found or imported, or is no function.
    """
    from trl import rewards as of_trl

    from .. import rewards

    math = partial(
        rewards.math_reward,
        accept_unboxed=recipe.data.math_accept_unboxed,
        decimal_comma=recipe.data.decimal_comma,
    )
    known: dict[str, Any] = {
        name: getattr(of_trl, name) for name in of_trl.__all__ if name.endswith("_reward")
    }
    known["math_reward"] = update_wrapper(math, rewards.math_reward)
    known["choice_reward"] = rewards.choice_reward
    names = recipe.run.reward_funcs or ["choice_reward" if has_options else "math_reward"]
    if _OVERLONG in names:
        known[_OVERLONG] = _overlong(recipe)
    return [_load_reward(name, known) for name in names]


def _load_reward(name: str, known: dict[str, Any]) -> Callable[..., Any]:
    if "." in name:
        return _callable("reward_funcs", name)
    if name not in known:
        raise ValueError(
            f"reward_funcs: there is no {name!r}.{did_you_mean(name, known)} Take one of"
            f" {', '.join(known)}, {_OVERLONG}, or an import path such as `my_rewards.short`."
        )
    return known[name]


def _overlong(recipe: Recipe) -> Any:
    """Return DAPO's punishment of completions that come near the limit (arXiv 2503.14476, section
    3.4)."""
    from trl.rewards import get_soft_overlong_punishment

    longest, cache = recipe.config.max_completion_length or 0, recipe.run.soft_overlong_cache
    if not 0 < cache < longest:
        raise ValueError(
            f"soft_overlong_cache is {cache}. It must be below max_completion_length, {longest}."
        )
    return get_soft_overlong_punishment(longest, cache)


def load_tools(recipe: Recipe) -> dict[str, Any]:
    """Return `tools`, `environment_factory` and `rollout_func` as TRL's trainer takes them.

    Raises:
        ValueError: One cannot be imported, or is no function.
    """
    names = ("tools", "environment_factory", "rollout_func")
    named = {name: path for name in names if (path := getattr(recipe.run, name))}
    return {
        name: [_callable(name, each) for each in path]
        if isinstance(path, list)
        else _callable(name, path)
        for name, path in named.items()
    }


def _callable(setting: str, path: str) -> Any:
    found = import_object(setting, path)
    if not callable(found):
        raise ValueError(f"{setting}: {path} is {found!r}. It must be a function.")
    return found
