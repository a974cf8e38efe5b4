"""Hide secrets by their names: values of environment variables and settings that are called one.

Names are split at capitals: hub_token, WANDB_API_KEY, clientSecret and userPassword are secrets,
and what stands in such a variable is hidden wherever it appears in a text. A secret that no name
tells is not known.
"""

import os
import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "***"
_SECRET = re.compile(r"(?:^|_)(?:token|(?:api|access|secret|private)_?key|secret|passw(?:or)?d)$")
_OF_TOKENIZER = re.compile(r"(?:^|_)(?:bos|eos|pad|unk|sep|cls|mask|image|video|audio)_token$")
_SHORTEST = 8  # characters of a value that is hidden in texts: "true" is none


def is_secret(name: str) -> bool:
    """Return whether a name is a secret's."""
    plain = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).replace("-", "_").lower()
    return bool(_SECRET.search(plain)) and not _OF_TOKENIZER.search(plain)


def hide(text: str) -> str:
    """Return a text without the values of the environment's secrets."""
    secrets = [value for name, value in os.environ.items() if is_secret(name)]
    for value in sorted(secrets, key=len, reverse=True):
        if len(value) >= _SHORTEST:
            text = text.replace(value, HIDDEN)
    return text


def hide_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without the values of those that are named as secrets, in nested ones, too,
    and without the environment's in all texts."""
    return {
        name: HIDDEN if value is not None and is_secret(str(name)) else _hidden(value)
        for name, value in settings.items()
    }


def _hidden(value: Any) -> Any:
    if isinstance(value, Mapping):
        return hide_settings(value)
    if isinstance(value, list):
        return [_hidden(each) for each in value]
    return hide(value) if isinstance(value, str) else value
