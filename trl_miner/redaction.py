"""Take secrets out of what is written and printed: by value, by the shape of a token, and by the name of a setting.

By value: what stands in an environment variable with the name of a secret, and what `learn` has found in settings,
wherever it appears. Texts of models and data sets are not settings, and stay as they are.
"""

import json
import os
import re
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

HIDDEN = "***"
# Characters of a value that is hidden inside of words, and of one that is hidden as a word of its own.
_SHORTEST, _SHORTEST_ALONE = 16, 6
_ACCESS = (
    "access|account|admin|anthropic|api|auth|aws|azure|bearer|bot|client|database|db|deploy|github|gitlab|google|hf|hub"
    "|huggingface|judge|login|openai|personal|private|proxy|refresh|secret|service|session|signing|slack|smtp|ssh"
    "|storage|user|wandb"
)
_SECRET_NAME = re.compile(  # in lower case with underscores
    r"(?:^|_)(?:pass(?:word|wd|phrase)s?|secrets?|credentials?|authorization|bearer|webhooks?|cookies?)(?:_|$)"
    rf"|_pwd$|(?:^|_)(?:otp|pat|(?:{_ACCESS})_?(?:tok(?:en)?s?|keys?|key_id|pass))$"
)
_PLACEHOLDER = re.compile(r"|\*+|none|null|true|false|<[^<>]*>|\$.*|\{.*\}", re.IGNORECASE | re.DOTALL)
_SHAPES = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"hf_(?!x+\b|X+\b)(?:[A-Za-z0-9]{30,}|(?=[A-Za-z]*[0-9A-Z])[A-Za-z0-9]{10,})|api_org_[A-Za-z0-9]{20,}"
    r"|sk-(?=[\w-]{0,99}?[A-Za-z0-9]{12})(?:[\w-]{32,}|(?=[A-Za-z_-]*\d)[\w-]{16,})|wandb_v1_\w{20,}"
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|(?:xai|pplx)-[A-Za-z0-9]{20,}"
    r"|(?:npm|gsk|r8)_[A-Za-z0-9]{30,}|(?:pypi|nvapi)-[\w-]{40,}|dckr_pat_[\w-]{20,}|xox[a-z]-[\w-]{10,}"
    r"|ya29\.[\w-]{10,}|AIza[\w-]{30,}|(?:AKIA|ASIA)[0-9A-Z]{16}(?![0-9A-Za-z])"
    r"|hooks\.(?:slack|zapier)\.com/[\w/-]{20,}|discord(?:app)?\.com/api/(?:v\d+/)?webhooks/[\w/-]+"
    r"|(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{10,}|whsec_[A-Za-z0-9]{20,}|SG\.[\w-]{10,}\.[\w-]{10,}|\d{8,10}:AA[\w-]{30,}"
    r"|[\w.-]{1,99}\.webhook\.office\.com/[\w@/-]+"
    r"|eyJ[\w-]{6,}\.eyJ[\w-]{4,}(?:\.[\w-]*)?"  # a JSON Web Token
    r")|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.DOTALL,
)
_AFTER = re.compile(  # what follows such a text is a secret
    r"((?<=[?&])(?:[\w-]{0,40}(?:signature|token|password)|sig|auth|key|api_?key)=)[^&\s\"']+"
    r"|(authorization\\*[\"']?\s*[:=]\s*\\*[\"']?(?:[A-Za-z]+[ ]+)?|\bbearer\s+(?=[^\s\"',;]*\d))[^\s\"',;\\]+"
    r"|(wandb.{0,60}?(?:key|password|login|token).{0,20}?)\b[0-9a-f]{40}\b"
    r"|((?<=://)[^\s/@:'\"]*:)[^\s/'\"]+(?=@)|((?<=://))[^\s/@:'\"]{16,}(?=@)",
    re.IGNORECASE | re.DOTALL,
)
_NAMED = re.compile(  # name=value, "name": "value", and --name value
    r"(?<![\w.-])(?P<before>(?P<name>--[\w-]{1,60}(?=[\s=,\"'])|[\w.-]{1,60}(?=[\"'\\\]]*\s*[:=]))[\"'\\\]]*\s*[:=,]?\s*"
    r"[\"'\\]*)(?P<value>[^\s,;&\"'\\)}\]]{6,})"
)
_PATH = re.compile(r"(?<![\w.:/~-])~?/(?:[^\s/=,'\"]+/)*([^\s/=,'\"]+)/?")
_learned: set[str] = set()


def redact(value: Any) -> Any:
    """Return settings, a command line or a text without the secrets in them, each replaced by `***`."""
    return _redact(value, "", _known_values())


def without_paths(value: Any) -> Any:
    """Return a value of JSON with the last name of each path in its texts."""
    if isinstance(value, str):
        return _PATH.sub(r"\1", value)
    if isinstance(value, Mapping):
        return {name: without_paths(inner) for name, inner in value.items()}
    return [without_paths(inner) for inner in value] if isinstance(value, list | tuple) else value


def learn(settings: Any) -> None:
    """Remember the secrets of settings or of a command line: from now on they are hidden wherever they appear."""
    _learned.update(value for _, value in _secrets_in(settings) if len(value) >= _SHORTEST_ALONE)


def find_secret(text: str, *, is_vocabulary: bool = False) -> str | None:
    """Return what a text to be published holds, "the value of HF_TOKEN" or "a secret under pwd"; None: no secret.

    A vocabulary is searched for known values alone: its words may have the shape of a secret.
    """
    for name, value in [*_in_environment(), *(("", value) for value in _learned)]:
        if len(value) >= _SHORTEST and value in text:
            return f"the value of {name}" if name else "a secret"
    if is_vocabulary:
        return None
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content = text
    for name, _ in _secrets_in(content):
        return f"a secret under {name}"
    return "a secret" if redact(content) != content else None


def split_options(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words of a command line without the options that hold a secret, and these options."""
    public: list[str] = []
    private: list[str] = []
    starts = [0, *(place for place, word in enumerate(words) if place and word.startswith("--")), len(words)]
    for start, end in zip(starts, starts[1:], strict=False):
        option = list(words[start:end])
        (public if redact(option) == option else private).extend(option)
    return public, private


def hide_in_tracebacks() -> None:
    """Show uncaught exceptions of this process without secrets: messages may quote settings. Ctrl-C is one line."""

    def show(*error: Any) -> None:
        if error[0] is KeyboardInterrupt:
            if int(os.environ.get("RANK") or 0) == 0:
                print("trl-miner: stopped by Ctrl-C.", file=sys.stderr)
            return
        print(redact("".join(traceback.format_exception(*error))), end="", file=sys.stderr)

    sys.excepthook = show


def _is_secret(name: str, value: Any) -> bool:
    """Return whether a value is a secret because of the name that it stands under, such as that of an option."""
    if not isinstance(value, str | int) or isinstance(value, bool) or _PLACEHOLDER.fullmatch(str(value)):
        return False
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[-.]", "_", name.lstrip("-")).lower()
    return bool(_SECRET_NAME.search(name)) or (name == "token" and len(str(value)) >= 8)


def _named(value: Mapping[Any, Any] | Sequence[Any], name: str) -> Iterator[tuple[str, Any]]:
    """Yield each item under its name: its key, the option before it, or the name of the whole, if it is a secret's."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield name if _is_secret(name, "x" * 8) else str(key), inner
        return
    option = ""
    for word in value:
        yield option or name, word
        option = word if isinstance(word, str) and re.fullmatch(r"--[\w.-]+", word) else ""


def _redact(value: Any, name: str, known: re.Pattern[str] | None) -> Any:
    if isinstance(value, Mapping):
        return {key: _redact(*item[::-1], known) for key, item in zip(value, _named(value, name), strict=True)}
    if isinstance(value, list | tuple):
        items = [_redact(inner, own, known) for own, inner in _named(value, name)]
        return tuple(items) if type(value) is tuple else items
    if not isinstance(value, str):
        return HIDDEN if _is_secret(name, value) else value
    option, equals, setting = value.partition("=")
    if equals and option.startswith("--") and _is_secret(option, setting):
        return f"{option}={HIDDEN}"
    if _is_secret(name, value) and not value.startswith("--"):
        return HIDDEN
    while (hidden := _redact_text(value, known)) != value:  # what stands around a secret may have been one itself
        value = hidden
    return value


def _redact_text(text: str, known: re.Pattern[str] | None) -> str:
    if known is not None:
        text = known.sub(HIDDEN, text)
    text = _SHAPES.sub(HIDDEN, text)
    text = _AFTER.sub(lambda match: f"{match[match.lastindex or 0]}{HIDDEN}", text)
    return _NAMED.sub(_redact_named, text)


def _redact_named(match: re.Match[str]) -> str:
    """Hide a value with a digit behind the name of a secret; words without one are prose or code."""
    is_named = match["name"].lower() != "secret" and _is_secret(match["name"], match["value"])
    is_hidden = is_named and re.search(r"\d", match["value"])
    return f"{match['before']}{HIDDEN}" if is_hidden else match[0]


def _secrets_in(settings: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield name and value of each secret that settings or a command line hold under its name."""
    if isinstance(settings, Mapping | list | tuple):
        for own, inner in _named(settings, name):
            yield from _secrets_in(inner, own)
    elif isinstance(settings, str) and settings.startswith("--"):
        name, _, settings = settings.partition("=")
        if _is_secret(name, settings):
            yield name, settings
    elif _is_secret(name, settings):
        yield name, str(settings)


def _in_environment() -> list[tuple[str, str]]:
    """Return the secrets of the environment; a short word or a path is none, whatever the variable's name."""
    found = _secrets_in(dict(os.environ))
    return [(name, value) for name, value in found if len(value) >= 8 and not os.path.exists(value)]


def _known_values() -> re.Pattern[str] | None:
    """Return what matches the secrets that are known by value, also as a URL spells them; None: none is."""
    values = {value for _, value in _in_environment()} | _learned
    spelled = sorted({spelling for value in values for spelling in (value, quote(value, safe=""))}, key=len)[::-1]
    words = (
        re.escape(value) if len(value) >= _SHORTEST else rf"(?<![A-Za-z0-9]){re.escape(value)}(?![A-Za-z0-9])"
        for value in spelled
    )
    return re.compile("|".join(words)) if spelled else None
