"""The settings of this package by group, as docstrings, `--help` and the guides show them."""

import inspect
import textwrap
from dataclasses import Field, fields
from typing import Any, get_type_hints

GROUPS = {
    "Method": "advantage_estimator all_right all_wrong advantage_estimator_kwargs miner_gamma"
    " miner_lambda_max miner_intrinsic entropy_weight dose_share policy_loss policy_loss_kwargs",
    "What counts as correct": "correct_reward_func correct_threshold gate_on_correctness",
    "Data": "dataset_revision dataset_prompt_column dataset_solution_column dataset_options_column"
    " options_columns context_columns first_option answer_pattern answer_after decimal_comma"
    " system_prompt prompt_template prompt_style task_config tasks task_size task_seed",
    "Rewards": "reward_funcs math_accept_unboxed judge_seconds judge_workers soft_overlong_cache",
    "Tools": "tools environment_factory rollout_func tool_seconds",
    "Sampling": "dynamic_sampling adaptive_sampling_rounds prompt_selection",
    "Scoring": "held_out score_samples score_final_samples score_steps score_batch_size keep_best"
    " early_stop",
    "Speed and memory": "optimizer_batch_size compute_less max_tokens_per_micro_batch",
    "The run": "asynchronous accelerate_config overwrite_output_dir watchdog_seconds quiet",
    "Logging": "log_gradient_share log_token_credit",
}


def grouped(*classes: Any) -> dict[str, list[Field[Any]]]:
    """Return the settings of this package that configuration classes have, by the title of their
    group.

    Raises:
        ValueError: A setting is in no group.
    """
    settings = {
        setting.name: setting
        for kind in classes
        for setting in fields(kind)
        if "limits" in setting.metadata
    }
    groups = {
        title: [settings.pop(name) for name in names.split() if name in settings]
        for title, names in GROUPS.items()
    }
    if settings:
        raise ValueError(f"GROUPS must have all settings: {', '.join(settings)} is in no group.")
    return {title: members for title, members in groups.items() if members}


def as_args(kind: Any) -> str:
    """Return the section of a docstring that describes the settings which a class adds to its
    bases, in the form of TRL's docstrings."""
    lines = ["Args:"]
    for title, settings in grouped(kind).items():
        own = [setting for setting in settings if setting.name in kind.__annotations__]
        lines += [f"    > {title}", ""] * bool(own)
        for setting in own:
            annotation = _annotation(setting.name, kind)
            kind_and_default = f"`{annotation}`, *optional*, defaults to `{_default(setting)}`"
            lines += [f"    {setting.name} ({kind_and_default}):"]
            lines += textwrap.wrap(
                setting.metadata["help"],
                width=96,  # of a line, less the indent of a docstring
                initial_indent=" " * 8,
                subsequent_indent=" " * 8,
                break_on_hyphens=False,
            )
            lines += [""]
    return "\n".join(lines)


def as_markdown(*classes: Any) -> str:
    """Return the settings of configuration classes as Markdown: a heading for each group, and for
    each setting its type, default, limits, and meaning."""
    lines = []
    for title, settings in grouped(*classes).items():
        lines += [f"## {title}", ""]
        for setting in settings:
            at_least, one_of, _ = setting.metadata["limits"]
            facts = [f"`{_annotation(setting.name, *classes)}`", f"default `{_default(setting)}`"]
            if at_least is not None:
                facts.append(f"at least {at_least:g}")
            if one_of:
                facts.append("one of " + ", ".join(f"`{value}`" for value in one_of))
            lines += [f"### `{setting.name}`", "", f"*{', '.join(facts)}*", ""]
            lines += [setting.metadata["help"], ""]
    return "\n".join(lines)


def _annotation(name: str, *classes: Any) -> str:
    """Return the type of a setting. Its field may have another one: transformers' parser writes
    there."""
    hints = next(hints for hints in map(get_type_hints, classes) if name in hints)
    return inspect.formatannotation(hints[name]).replace("typing.", "")


def _default(setting: Field[Any]) -> str:
    value = setting.default
    return f'"{value}"' if isinstance(value, str) else repr(value)
