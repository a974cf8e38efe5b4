"""The settings that runs record, in one spelling, whichever file they come from."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

# The defaults of MinerGRPOConfig, which this module must not import: it needs torch and TRL.
DEFAULTS = {
    "advantage_estimator": "miner",
    "policy_loss": "clip",
    "dynamic_sampling": "False",
    "adaptive_sampling_rounds": "1",
    "prompt_selection": "none",
    "importance_sampling_level": "token",
    "miner_gamma": "2.0",
    "miner_lambda_max": "0.0015",
    "miner_credit": "focal",
    "miner_intrinsic": "nll",
    "dose_share": "None",
}


def clean_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return each value as text, with one spelling for 2, "2.0" and 2.0, for a cap of null, "None" and .inf, and for
    MINER on all-right prompts."""
    shown = {str(name): _spell(value) for name, value in settings.items()}
    if shown.get("miner_lambda_max") == "inf":
        shown["miner_lambda_max"] = "None"
    mixed = shown.get("advantage_estimator", DEFAULTS["advantage_estimator"])
    if shown.get("all_right") == "miner" and mixed in ("grpo", "miner"):  # the short form: miner
        del shown["all_right"]
        shown["advantage_estimator"] = "miner"
    return shown


def read_options(options: Iterable[Any]) -> dict[str, Any]:
    """Return the options of a command line by name; a bare `--name` is "True"."""
    values: dict[str, Any] = {}
    name = None
    for option in map(str, options):
        if option.startswith("--"):
            name, has_value, value = option[2:].partition("=")
            name = name.replace("-", "_")
            values[name] = value if has_value else "True"
            name = None if has_value else name
        elif name is not None:
            values[name] = option if values[name] == "True" else f"{values[name]} {option}"
    return values


def _spell(value: Any) -> str:
    if value is None or (isinstance(value, str) and value.lower() in ("none", "null")):
        return "None"
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.capitalize()
    if isinstance(value, bool):
        return str(value)
    try:
        return str(float(str(value).removeprefix(".") if value == ".inf" else value))
    except (TypeError, ValueError, OverflowError):
        return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
