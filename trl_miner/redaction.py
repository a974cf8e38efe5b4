"""Secrets are taken out of what is written and printed: by value, by shape, and by the name they stand under.

By value: what stands in an environment variable with the name of a secret, and what `learn` has found in settings,
wherever it appears. Texts of models and data sets are not settings, and stay as they are.
"""

import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

HIDDEN = "***"
# Characters of a value that is hidden inside of words, and of one that is hidden as a word of its own.
_SHORTEST, _SHORTEST_ALONE = 16, 6
# Names, in lower case with underscores: under these all is a secret,
_ACCESS = (
    "access|account|admin|anthropic|api|auth|aws|azure|bearer|bot|client|csrf|database|db|deploy|discord|encryption|ftp"
    "|github|gitlab|google|hf|http|hub|huggingface|id|judge|login|mail|my|openai|personal|private|proxy|refresh|root"
    "|secret|service|session|signing|slack|smtp|ssh|storage|subscription|telegram|user|wandb"
)
_SECRET_NAME = re.compile(
    r"(?:^|_)(?:pass(?:word|wd|phrase)s?|pwd|secrets?|credentials?|authorization|bearer|webhooks?|cookies?)(?:_|$)"
    rf"|(?:^|_)(?:o?auth|otp|pat|session|(?:{_ACCESS})_?(?:tok(?:en?)?s?|keys?|key_id|pass))$"
)
_OPEN_NAME = re.compile(r"(?:^|_)(?:tokens?|keys?|pass)$")  # and under these what looks random: words have tokens, too
_RANDOM = re.compile(r"(?<![A-Za-z0-9])(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]{12,}")
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:%|/\d+)?")  # a metric's, such as a rate of passes
# Code that reads or declares a secret, up to its first quote or bracket, and what guides write in its place.
_HARMLESS = re.compile(
    r"\s*|\*+|none|null|true|false|yes|no|on|off|enabled|disabled|required|optional|empty|must|got|<[^<>]*>|\$.*"
    r"|str|bytes|(?:optional|union)\[.*|[a-z_][a-z_.]*[(\[]|\{+\w*\}*|(?:hf_)?\.{2,}|hf_x+|your[a-z_ -]*|<your"
    r"|[\w./-]*\.(?:json|jsonl|safetensors|py|ya?ml|txt|md|csv|parquet|bin)\.?",
    re.IGNORECASE | re.DOTALL,
)
_SHAPES = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"hf_(?!x+\b|X+\b)(?:[A-Za-z0-9]{30,}|(?=[A-Za-z]*[0-9A-Z])[A-Za-z0-9]{10,})|api_org_[A-Za-z0-9]{20,}"
    r"|sk-(?=[\w-]{0,99}?[A-Za-z0-9]{12})(?:[\w-]{32,}|(?=[A-Za-z_-]*\d)[\w-]{16,})"
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|(?:xai|pplx)-[A-Za-z0-9]{20,}|tgp_v1_[\w-]{20,}|lsv2_[a-z]{2}_\w{20,}|(?:npm|gsk|r8)_[A-Za-z0-9]{30,}"
    r"|(?:pypi|nvapi)-[\w-]{40,}|dckr_pat_[\w-]{20,}|wandb_v1_\w{20,}"
    r"|(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{10,}|whsec_[A-Za-z0-9]{20,}|SG\.[\w-]{10,}\.[\w-]{10,}"
    r"|ya29\.[\w-]{10,}|AIza[\w-]{30,}|(?:AKIA|ASIA)[0-9A-Z]{16}(?![0-9A-Za-z])|xox[a-z]-[\w-]{10,}"
    r"|\d{8,10}:AA[\w-]{30,}"  # Telegram
    r"|hooks\.(?:slack|zapier)\.com/[\w/-]{20,}|discord(?:app)?\.com/api/(?:v\d+/)?webhooks/[\w/-]+"
    r"|[\w.-]{1,99}\.webhook\.office\.com/[\w@/-]+|outlook\.office(?:365)?\.com/webhook/[\w@/-]+"  # Teams
    r"|eyJ[\w-]{6,}\.eyJ[\w-]{4,}(?:\.[\w-]*)?"  # a JSON Web Token
    r")|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.DOTALL,
)
_URL_USER = re.compile(r"(?<=://)(?:([^\s/@:'\"]*):[^\s/'\"]+|[^\s/@:'\"]{16,})@")
# What follows such a text, or lies within it, is a secret.
_AFTER = re.compile(
    r"((?<=[?&])(?:[\w-]{0,40}(?:signature|token|password)|sig|auth|key|api_?key|pwd|pass|secret|session|otp)=)[^&\s\"']+"
    r"|((?:authorization\\*[\"']?\s*[:=]\s*\\*[\"']?(?:[A-Za-z]+[ ]+)?)|\bbearer\s+(?=[^\s\"',;]*\d|[^\s\"',;]{20}))"
    r"[^\s\"',;\\]+"
    r"|(\bcurl\s[^\n|;]{0,400}?(?<=\s)(?:-u|--user)[\s=]*[\"']?[^\s:\"']{1,99}:)[^\s\"']+"
    r"|(wandb.{0,60}?(?:key|password|login|token).{0,20}?)\b[0-9a-f]{40}\b",
    re.IGNORECASE | re.DOTALL,
)
_NAME = r"--[\w-]{1,40}(?![\w-])|(?!--)[\w.-]{0,40}?(?:tok|key|secret|pass|pwd|auth|bearer|pat|session|otp"
_NAME += r"|credential|webhook|cookie)[\w.-]{0,40}"
_BETWEEN = r"\\*[\"']?\]?[ \t]*[:=][ \t]*(?:\\*[\"'])?|(?<=\w)[\"']?(?:\s+|,\s*)[\"']?"
_VALUE = r"\[[^\]\n]*\]|(?:\n[ \t]*- [^\n:]+)+|(?<=\")[^\"\n\\]*|(?<=')[^'\n\\]*|(?:[^\s,;&\"'\\)}\]]|,(?!\s|$))+"
_NAMED = re.compile(  # name=value, "name": "value", and --name value
    rf"(?<![\w.@-])(?P<name>{_NAME})(?P<between>{_BETWEEN})(?P<value>{_VALUE})",
    re.IGNORECASE,
)
_PATH = re.compile(r"(?<![\w.:/~-])~?/(?:[^\s/=,'\"]+/)*([^\s/=,'\"]+)/?")
_learned: set[str] = set()


def redact(value: Any) -> Any:
    """Return settings, a command line or a text without the secrets in them, each replaced by `***`."""
    known = _known_values()
    return _walk(value, lambda text: _redact_text(text, known), [])


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


def is_secret(name: str, value: Any) -> bool:
    """Return whether a value is a secret because of the name that it stands under, such as that of an option."""
    if value is None or isinstance(value, bool | float) or _HARMLESS.fullmatch(text := str(value)):
        return False
    own = re.sub(r"(?<=[a-z])(?=[A-Z])|[-.]", "_", name.lstrip("-")).lower()
    if "@" in name or _is_variable(own, text) or (own.endswith("pwd") and text[0] in "/~."):  # the shell's folder
        return False
    is_number = isinstance(value, int) or _NUMBER.fullmatch(text) is not None
    if name in ("--token", "--key", "--pass") or _SECRET_NAME.search(own):
        return not (is_number and own.endswith(("auth", "session", "pat")))
    if is_number or "." in name or not _OPEN_NAME.search(own):
        return False
    return own == "pass" or (own == "token" and len(text) >= 8) or _RANDOM.search(text) is not None


def find_secret(text: str, *, is_vocabulary: bool = False) -> str | None:
    """Return what a text to be published holds, "the value of HF_TOKEN" or "a secret under pwd"; None: no secret.

    A vocabulary is searched for known values alone: its words may have the shape of a secret.
    """
    for name, value in _secrets_in(dict(os.environ)):
        if _is_known_value(value) and len(value) >= _SHORTEST and value in text:
            return f"the value of {name}"
    if any(value in text for value in _learned if len(value) >= _SHORTEST):
        return "a secret"
    if is_vocabulary:
        return None
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content = text
    for name, _ in _secrets_in(content):
        return f"a secret under {name}"
    return "a secret" if redact(content) != content else None


def _is_variable(name: str, text: str) -> bool:
    """Return whether a value only repeats its name, as in `login(token=hf_token)` or `hub_token=args.hub_token`."""
    if not re.fullmatch(r"[A-Za-z_.]+", text):
        return False
    last = text.lower().rpartition(".")[2]
    return name.endswith(last) or last.endswith(name)


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


def _secrets_in(settings: Any) -> list[tuple[str, str]]:
    """Return name and value of each secret that settings or a command line hold under its name."""
    found: list[tuple[str, str]] = []
    _walk(settings, lambda text: text, found)
    return found


def _walk(value: Any, hide: Callable[[str], str], found: list[tuple[str, str]], name: str = "") -> Any:
    """Return a value without the secrets under their names, which are added to `found`, and with `hide` of its texts.

    `name` is that of the value; in a command line an option names the word after it.
    """
    if isinstance(value, Mapping):
        named = {"value": str(value.get("name", value.get("key")))} if "value" in value else {}  # an `env` of YAML
        return {
            key: _walk(inner, hide, found, _inner_name(name, named.get(str(key), str(key))))
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        words, option = [], name
        for word in value:
            words.append(_walk_word(word, hide, found, option))
            option = word if isinstance(word, str) and re.fullmatch(r"--[\w.-]+", word) else name
        return tuple(words) if type(value) is tuple else words
    if name and is_secret(name, value):
        found.append((name, str(value)))
        return HIDDEN
    return hide(value) if isinstance(value, str) else value


def _walk_word(word: Any, hide: Callable[[str], str], found: list[tuple[str, str]], name: str) -> Any:
    """Walk an item of a list, which may be `--name=value`."""
    if isinstance(word, str) and word.startswith("--"):
        option, equals, value = word.partition("=")
        if equals and is_secret(option, value):
            found.append((option, value))
            return f"{option}={HIDDEN}"
        return hide(word)
    return _walk(word, hide, found, name)


def _inner_name(name: str, key: str) -> str:
    """Return the name that decides about an item of a mapping: in `tokens`, `hf` stands for hf_tokens."""
    if name and _SECRET_NAME.search(name.lower()):
        return name
    return f"{key}_{name}" if name.lower().endswith(("tokens", "keys")) else key


def _redact_text(text: str, known: re.Pattern[str] | None) -> str:
    """Hide until nothing is left to hide: what stands around a name decides, and may have been a secret itself."""
    while (hidden := _redact_once(text, known)) != text:
        text = hidden
    return text


def _redact_once(text: str, known: re.Pattern[str] | None) -> str:
    if known is not None:
        text = known.sub(HIDDEN, text)
    text = _SHAPES.sub(HIDDEN, text)
    if "://" in text:
        text = _URL_USER.sub(lambda match: f"{match[1]}:{HIDDEN}@" if match[1] is not None else f"{HIDDEN}@", text)
    text = _AFTER.sub(lambda match: f"{match[match.lastindex or 0]}{HIDDEN}", text)
    return _NAMED.sub(_redact_named, text)


def _redact_named(match: re.Match[str]) -> str:
    """Hide the value of `name=value`, `"name": "value"` or `--name value`; prose such as `the token: got` stays."""
    name, between, value = match["name"], match["between"], match["value"]
    is_option = name.startswith("--")
    if not is_option and not re.search("[:=]", between):
        return match[0]
    is_prose = (
        between == ": "
        and "_" not in name
        and not re.search(r"\d", value)
        and re.match(r"[ ]+\w|\.$", match.string[match.end() :])
    )
    if is_prose or value.startswith("--") or not is_secret(name, value):
        return match[0]
    return f"{name}{between}{HIDDEN}"
