"""Take secrets out of what is written and printed: by value, by the name of a setting, and by the
shape of a token.

By value: what stands in an environment variable with the name of a secret, and what `learn` has
found in settings, wherever it appears. Within a text, a name counts where it stands as a shell, a
query or an HTTP header writes it: `WANDB_API_KEY=...`, `?token=...`, `Authorization: Bearer ...`.
"""

import contextlib
import json
import os
import re
import sys
import traceback
from collections.abc import Mapping
from typing import Any

HIDDEN = "***"
_SHORTEST = 8  # characters of a value that is hidden wherever it appears
_SECRET_NAME = re.compile(  # in lower case with underscores
    r"(?:^|_)(?:pass(?:word|wd|phrase)s?|pwd|secrets?|credentials?|authorization|webhooks?(?:_url)?)$"
    r"|(?:^|_)(?:access|account|api|auth|aws|bearer|bot|client|deploy|encryption|github|hf|hub|huggingface|judge"
    r"|master|openai|private|refresh|secret|service|session|signing|ssh|storage|wandb)"
    r"_?(?:tok(?:en)?s?|keys?|key_id|pass)$"
)
# Names that a harmless value has, too: it counts if it is long.
_LIKELY_NAME = re.compile(
    r"(?:^|_)(?:auth|cookies?|dsn|database_url|db_url|connection_string|bearer)$"
)
# Tokens of a tokenizer have such names; their values have no digit, or marks such as <s>.
_ANY_TOKEN = re.compile(r"(?!(?:bos|eos|pad|unk|sep|cls|mask|image|video|audio)_)\w*_token")
_TOKEN_VALUE = re.compile(r"(?=\D*\d)(?=[^A-Za-z]*[A-Za-z])[\w.~+/=:-]{8,}")
_PLACEHOLDER = re.compile(
    r"|\*+|none|null|true|false|<[^<>]*>|\$.*|\{.*\}", re.IGNORECASE | re.DOTALL
)
_SHAPES = re.compile(  # tokens, webhooks and keys, and the user in an address
    r"(?<![A-Za-z0-9])(?:hf_(?!x+\b)(?=[A-Za-z]*[0-9A-Z]|[a-z]{30})[A-Za-z0-9]{10,}|api_org_[A-Za-z0-9]{20,}"
    r"|wandb_v1_\w{20,}|sk-(?=[\w-]{0,99}?[A-Za-z0-9]{12})(?=[A-Za-z_-]{0,99}\d)[\w-]{16,}"
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|(?:AKIA|ASIA)[0-9A-Z]{16}(?![0-9A-Za-z])"
    r"|xox[abposr]-(?=[\w-]*\d)[\w-]{10,}|gl(?:pat|dt|ft|soat|rt)-[\w-]{20,}|[rs]k_live_[A-Za-z0-9]{20,}|AIza[\w-]{35}|nvapi-[\w-]{20,}|r8_[A-Za-z0-9]{30,}"
    r"|pypi-[\w-]{50,}|SG\.[\w-]{20,}\.[\w-]{30,}|\d{8,10}:AA[\w-]{33,}|gsk_[A-Za-z0-9]{40,}|xai-[A-Za-z0-9]{60,}"
    r"|pplx-[A-Za-z0-9]{40,}|do[opr]_v1_[0-9A-Za-z]{64,}|ya29\.[\w-]{20,}|shp(?:at|ca|pa|ss)_[0-9A-Za-z]{32,}"
    r"|npm_[A-Za-z0-9]{30,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
    r"|-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,20}PRIVATE KEY-----|\Z)"
    r"|(?<=hooks\.slack\.com/services/)[\w/]+|(?<=/api/webhooks/)\d+/[\w-]+|(?<=webhook\.office\.com/)[^\s'\"]+"
    r"|(?<=://)[^\s/@'\"]*:[^\s/'\"]+(?=@)|(?<=://)[\w-]{16,}(?=@)",
    re.DOTALL,
)
_IN_QUERY = re.compile(
    r"([?&][\w.-]{0,40}(?:token|key|secret|password|signature|sig|auth|credential)=)[^\s&#'\"*]{8,}",
    re.IGNORECASE,
)
_IN_HEADER = re.compile(
    r"(\b(?:authorization[\"']?\s*[:=]\s*[\"']?(?:bearer|basic|token)|x-api-key[\"']?\s*:)\s*[\"']?)"
    r"(?=[^\s\"'<>{}]*\d)[^\s\"'<>{}$*]{8,}",
    re.IGNORECASE,
)
_IN_SHELL = re.compile(
    r"(\b[A-Z][A-Z0-9_]*_(?:KEY|TOKEN|SECRET|PASSWORD)=[\"']?)(?=[^\s\"'<>{}]*\d)[^\s\"'<>{}$*]{8,}"
)
_learned: set[str] = set()


def redact(value: Any) -> Any:
    """Return settings, a command line or a text without the secrets in them, each replaced by
    `***`."""
    return _hide(value, "", set())


def learn(settings: Any) -> None:
    """Remember the secrets of settings or of a command line: from now on they are hidden wherever
    they appear."""
    found: set[str] = set()
    _hide(settings, "", found)
    _learned.update(value for value in found if len(value) >= _SHORTEST)


def find_secret(text: str, *, is_vocabulary: bool = False) -> str | None:
    """Return what a text to be published holds, such as "the value of HF_TOKEN"; None: no secret.

    A vocabulary is searched for known values alone: its words may have the shape of a secret.
    """
    for value, name in _known().items():
        if value in text:
            return f"the value of {name}" if name else "a secret"
    return None if is_vocabulary or redact(text) == text else "a secret"


def hide_in_tracebacks() -> None:
    """Show uncaught exceptions of this process without secrets: messages may quote settings. Ctrl-C
    is one line."""

    def show(*error: Any) -> None:
        if error[0] is KeyboardInterrupt:
            if int(os.environ.get("RANK") or 0) == 0:
                print("trl-miner: stopped by Ctrl-C.", file=sys.stderr)
            return
        print(redact("".join(traceback.format_exception(*error))), end="", file=sys.stderr)

    sys.excepthook = show


def _is_secret(name: str, value: Any) -> bool:
    """Return whether a value is a secret because of the name that it stands under, such as that of
    an option."""
    if (
        not isinstance(value, str | int)
        or isinstance(value, bool)
        or _PLACEHOLDER.fullmatch(str(value))
    ):
        return False
    plain = re.sub(r"[-.]", "_", name.lstrip("-")).lower()
    # a variable of the environment
    is_token = plain == "token" or re.fullmatch("[A-Z0-9_]+_TOKEN", name)
    is_long = len(str(value)) >= _SHORTEST
    return bool(
        _SECRET_NAME.search(plain)
        or ((is_token or _LIKELY_NAME.search(plain)) and is_long)
        or (
            _ANY_TOKEN.fullmatch(plain) and isinstance(value, str) and _TOKEN_VALUE.fullmatch(value)
        )
    )


def _hide(value: Any, name: str, secrets: set[str]) -> Any:
    """Return a value that stands under a name without its secrets; add those that a name tells to
    `found`."""
    if isinstance(value, Mapping):
        is_under_secret = _is_secret(name, "x" * _SHORTEST)
        return {
            key: _hide(inner, name if is_under_secret else str(key), secrets)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        options = [
            "",
            *(word if isinstance(word, str) and word.startswith("--") else "" for word in value),
        ]
        return type(value)(
            _hide(word, option or name, secrets)
            for option, word in zip(options, value, strict=False)
        )
    option, equals, setting = value.partition("=") if isinstance(value, str) else ("", "", "")
    if equals and option.startswith("--") and _is_secret(option, setting):
        secrets.add(setting)
        return f"{_hide_in_text(option, secrets)}={HIDDEN}"
    if _is_secret(name, value) and not str(value).startswith("--"):
        secrets.add(str(value))
        return HIDDEN
    return _hide_in_text(value, secrets) if isinstance(value, str) else value


def _hide_in_text(text: str, secrets: set[str]) -> str:
    if text.lstrip().startswith("{"):  # settings as JSON, such as the value of an option
        with contextlib.suppress(ValueError, RecursionError):
            settings = json.loads(text)
            hidden = _hide(settings, "", secrets)
            return text if hidden == settings else json.dumps(hidden)
    for secret in _known():
        text = text.replace(secret, HIDDEN)
    text = _SHAPES.sub(HIDDEN, text)
    for named in (_IN_QUERY, _IN_HEADER, _IN_SHELL):
        text = named.sub(rf"\1{HIDDEN}", text)
    return text


def _known() -> dict[str, str]:
    """Return the secrets that are known by value, the longest first, each with its variable or an
    empty text."""
    environment = {
        value: name
        for name, value in os.environ.items()
        if len(value) >= _SHORTEST and _is_secret(name, value) and not os.path.exists(value)
    }
    return dict(
        sorted((dict.fromkeys(_learned, "") | environment).items(), key=lambda item: -len(item[0]))
    )
