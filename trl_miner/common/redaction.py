"""Hide secrets by their names: values of the environment and of settings that are called one."""

from collections.abc import Mapping
from typing import Any

HIDDEN = "***"


def is_secret(name: str) -> bool:
    """Return whether a name is a secret's: hub_token, WANDB_API_KEY, clientSecret, password."""
    return False


def hide(text: str) -> str:
    """Return a text without the values of the secrets that the environment names."""
    return text


def hide_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without the values of those named as secrets, in nested ones, too, and
    without values of the environment's in the others."""
    return dict(settings)
