"""Secrets are taken out of what is written and printed: by the name they stand under, by shape, and by value.

By value: what stands in an environment variable with the name of a secret, and what `learn` has found in settings,
wherever it appears. Texts of models and data sets are not settings, and stay as they are.
"""

import os
import re
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import quote

HIDDEN = "***"
# Characters of a value that is hidden inside of words, and of one that is hidden as a word of its own.
_SHORTEST, _SHORTEST_ALONE = 16, 6
_SHORTEST_TOKEN = 8  # characters of what stands under "token" alone, as words of a vocabulary do too
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SECRET = {"password", "passwd", "passphrase", "secret", "secrets", "credential", "credentials", "authorization"}
_SECRET |= {"webhook", "cookie"}
# Tokens of a vocabulary, and keys of a table, are no secrets.
_OF_VOCABULARY = {
    *("eos", "bos", "pad", "unk", "sep", "cls", "mask", "eot", "eom", "boi", "eoi", "im", "special", "extra", "added"),
    *("image", "audio", "video", "vision", "text", "word", "start", "stop", "begin", "end", "prefix", "suffix"),
    *("decoder", "forced", "think", "thinking", "tool", "response", "user", "assistant", "system", "newline", "space"),
    *("per", "each", "max", "min", "num", "new", "next", "last", "first", "any", "label", "placeholder", "separator"),
    *("by", "answer", "reward", "correct"),
}
_OF_ACCESS = {
    *("api", "access", "secret", "private", "auth", "account", "storage", "encryption", "signing", "ssh", "service"),
    *("subscription", "wandb", "openai", "anthropic", "hf", "hub", "huggingface", "bearer", "refresh", "client"),
}
_RUN_TOGETHER = re.compile(  # HFTOKEN
    rf"(?<![A-Za-z])({'|'.join(sorted(_OF_ACCESS))})(tokens?|keys?)(?![A-Za-z])", re.IGNORECASE
)
_HARMLESS = re.compile(r"|\*+|none|null|true|false|<[^<>]*>|\$.*", re.IGNORECASE | re.DOTALL)
_RANDOM = re.compile(r"(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]{12,}")
_PROSE = {
    *("a", "an", "the", "this", "that", "it", "its", "your", "my", "no", "not", "nothing", "is", "was", "must", "may"),
    *("got", "see", "set", "use", "give", "unset", "in", "of", "to", "for", "from", "with", "as", "or", "and", "if"),
    *("default", "str", "string", "optional", "required", "missing", "invalid", "wrong", "unknown", "one", "either"),
}
_SHAPES = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"hf_(?!x+\b|X+\b)(?:[A-Za-z0-9]{30,}|(?=[A-Za-z]*[0-9A-Z])[A-Za-z0-9]{10,})|api_org_[A-Za-z0-9]{20,}"
    r"|sk-(?=[\w-]{0,99}?[A-Za-z0-9]{12})(?:[\w-]{32,}|(?=[A-Za-z_-]*\d)[\w-]{16,})"
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|(?:npm|gsk|r8)_[A-Za-z0-9]{30,}|(?:pypi|nvapi)-[\w-]{40,}|dckr_pat_[\w-]{20,}"
    r"|hooks\.slack\.com/services/[\w/]{20,}"
    r"|xox[a-z]-[\w-]{10,}|(?:AKIA|ASIA)[0-9A-Z]{16}(?![0-9A-Za-z])|AIza[\w-]{30,}|wandb_v1_\w{20,}"
    r"|eyJ[\w-]{6,}\.eyJ[\w-]{4,}(?:\.[\w-]*)?"
    r")|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.DOTALL,
)
_URL_USER = re.compile(r"(?<=://)(?:([^\s/@:'\"]*):[^\s/'\"]+|[^\s/@:'\"]{16,})@")
_URL_SIGNATURE = re.compile(r"(?<=[?&])((?:[\w-]{0,40}signature|sig)=)[^&\s\"']+", re.IGNORECASE)
_HEADER = re.compile(
    r"((?:authorization\\*[\"']?\s*[:=]\s*\\*[\"']?(?:[A-Za-z]+[ ]+)?)|\bbearer\s+(?=[^\s\"',;]*\d|[^\s\"',;]{20}))"
    r"[^\s\"',;\\]+",
    re.IGNORECASE,
)
_WANDB_KEY = re.compile(
    r"(wandb.{0,60}?(?:key|password|login|token).{0,20}?)\b[0-9a-f]{40}\b", re.IGNORECASE | re.DOTALL
)
_NAMED = re.compile(
    r"(?<![\w.-])(?P<dashes>-{0,2})(?P<name>[\w.-]{0,40}?(?:tok|key|secret|pass|credential|webhook|cookie)[\w.-]{0,40})"
    r"(?P<close>\\*[\"'])?(?P<between>\s*[:=]\s*|,?\s+|,)(?P<open>[\[(]?(?:\\*[\"'])?)"
    r"(?P<value>(?<=\")[^\"\n\\]*|(?<=')[^'\n\\]*|[^\s,;&\"'\\\])}]+)",
    re.IGNORECASE,
)
_PATH = re.compile(r"(?<![\w.:/~-])~?/(?:[^\s/=,'\"]+/)*([^\s/=,'\"]+)/?")
_learned: set[str] = set()


def redact(value: Any) -> Any:
    """Return settings, a command line or a text without the secrets in them, each replaced by `***`."""
    return _redact(value, _known_values())


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


def is_secret(name: str, value: Any, *, is_option: bool = False) -> bool:
    """Return whether a value is a secret because of the name that it stands under, such as that of an option."""
    if value is None or isinstance(value, bool | float) or _HARMLESS.fullmatch(str(value)):
        return False
    if is_option and name.lower() in ("token", "key", "pass"):
        return True
    if isinstance(value, int) or (name.lower() == "token" and len(value) < _SHORTEST_TOKEN):  # rather a vocabulary's
        *before, last = _words(name) or [""]
        is_of_access = last in ("token", "key") and not _OF_ACCESS.isdisjoint(before[-1:])
        return is_of_access or not _SECRET.isdisjoint([*before, last])
    return _is_secret_name(name) or (name.lower().endswith("key") and _RANDOM.search(str(value)) is not None)


def find_secret(text: str, *, shapes: bool = True) -> str | None:
    """Return what a text holds, "the value of HF_TOKEN" or "a secret"; None: no secret by value or by shape."""
    for name, value in _secrets_in(dict(os.environ)):
        if _is_known_value(value) and len(value) >= _SHORTEST and value in text:
            return f"the value of {name}"
    if any(value in text for value in _learned if len(value) >= _SHORTEST) or (shapes and _SHAPES.search(text)):
        return "a secret"
    return None


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
    """Show uncaught exceptions of this process without secrets: messages may quote settings."""

    def show(*error: Any) -> None:
        print(redact("".join(traceback.format_exception(*error))), end="", file=sys.stderr)

    sys.excepthook = show


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORDS.findall(_RUN_TOGETHER.sub(r"\1_\2", name))]


@lru_cache(10_000)
def _is_secret_name(name: str) -> bool:
    words = _words(name)
    if not words or _SECRET.intersection(words):
        return bool(words)
    if words[-1] == "id" and words[-2:-1] == ["key"]:  # AWS_ACCESS_KEY_ID
        words.pop()
    *before, last = words
    qualifier = before[-1] if before else ""
    if last == "token":
        return qualifier not in _OF_VOCABULARY
    if last in ("tokens", "keys", "tok", "toke"):  # an option may be abbreviated
        return qualifier in _OF_ACCESS
    if last in ("key", "pass", "pwd"):
        return bool(before) and (qualifier in _OF_ACCESS or name.isupper())
    return False


def _known_values() -> re.Pattern[str] | None:
    """Return what matches the secrets that are known by value, also as a URL spells them; None: none is."""
    values = {value for _, value in _secrets_in(dict(os.environ)) if _is_known_value(value)} | _learned
    spelled = sorted({spelling for value in values for spelling in (value, quote(value, safe=""))}, key=len)
    inner = [re.escape(value) for value in reversed(spelled) if len(value) >= _SHORTEST]
    alone = [re.escape(value) for value in reversed(spelled) if len(value) < _SHORTEST]
    if alone:
        inner.append(rf"(?<![A-Za-z0-9])(?:{'|'.join(alone)})(?![A-Za-z0-9])")
    return re.compile("|".join(inner)) if inner else None


def _is_known_value(value: str) -> bool:
    # of variables not every one is a secret, so that a short word or a path is taken for none
    return len(value) >= 8 and not (os.sep in value and os.path.exists(value))


def _secrets_in(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield name and value of each secret that settings or a command line hold under its name."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _secrets_in(inner, _inner_name(name, str(key)))
    elif isinstance(value, list | tuple):
        for before, inner in zip((None, *value), value, strict=False):
            yield from _secrets_in(inner, _option_name(before) or name)
            if isinstance(inner, str) and inner.startswith("--") and "=" in inner:
                yield from _secrets_in(inner.partition("=")[2], _option_name(inner.partition("=")[0]) or "")
    elif name and is_secret(name, value):
        yield name, str(value)


def _inner_name(name: str, key: str) -> str:
    """Return the name that decides about an item of a mapping: in `tokens`, `hf` stands for hf_tokens."""
    if _is_secret_name(name):
        return name
    is_of_several = _words(name)[-1:] in (["tokens"], ["keys"]) and not _is_secret_name(key)
    return f"{key}_{name}" if is_of_several else key


def _option_name(word: Any) -> str | None:
    """Return the name of an option whose value is the next word."""
    is_option = isinstance(word, str) and word.startswith("--") and "=" not in word
    return str(word).lstrip("-") if is_option else None


def _redact(value: Any, known: re.Pattern[str] | None, name: str = "") -> Any:
    if isinstance(value, Mapping):
        return {
            key: inner
            if inner is None or isinstance(inner, float)
            else _redact(inner, known, _inner_name(name, str(key)))
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        before = (None, *value)
        words = [_redact_word(word, known, _option_name(before[place]), name) for place, word in enumerate(value)]
        return type(value)(words) if type(value) in (list, tuple) else words
    if name and is_secret(name, value):
        return HIDDEN
    return _redact_text(value, known) if isinstance(value, str) else value


def _redact_word(word: Any, known: re.Pattern[str] | None, option: str | None, name: str) -> Any:
    """Redact an item of a list, which may be the value of the option before it."""
    if option and isinstance(word, str) and not word.startswith("--"):
        return HIDDEN if is_secret(option, word, is_option=True) else _redact_text(word, known)
    return _redact(word, known, name)


def _redact_text(text: str, known: re.Pattern[str] | None) -> str:
    if known is not None:
        text = known.sub(HIDDEN, text)
    text = _SHAPES.sub(HIDDEN, text)
    if "://" in text:
        text = _URL_USER.sub(lambda match: f"{match[1]}:{HIDDEN}@" if match[1] is not None else f"{HIDDEN}@", text)
        text = _URL_SIGNATURE.sub(rf"\1{HIDDEN}", text)
    text = _WANDB_KEY.sub(rf"\1{HIDDEN}", _HEADER.sub(rf"\1{HIDDEN}", text))
    return _NAMED.sub(_redact_named, text)


def _is_no_prose(name: str, value: str) -> bool:
    """Return whether what follows a name and a colon is a value: "a secret: model.json holds it" has none."""
    if len(_words(name)) > 1:
        return value.lower().strip(".") not in _PROSE
    if "password" in name.lower():
        return len(value) >= _SHORTEST_ALONE and re.search(r"\d", value) is not None
    return _RANDOM.search(value) is not None


def _redact_named(match: re.Match[str]) -> str:
    """Hide the value of `name=value`, `"name": "value"` or `--name value`; prose such as `the token: got` stays."""
    name, value, between = match["name"], match["value"], match["between"]
    is_quoted = match["open"][-1:] in ("'", '"') and match["open"] != ""
    if not between.strip(" \t\n") or between.strip() == ",":
        is_value = match["dashes"] == "--" and not value.startswith("--") and value.lower() not in _PROSE
    else:
        is_value = is_quoted or not between[-1:].isspace() or _is_no_prose(name, value)
    if not is_value or not is_secret(name, value, is_option=match["dashes"] == "--"):
        return match[0]
    return match[0][: match.start("value") - match.start()] + HIDDEN
