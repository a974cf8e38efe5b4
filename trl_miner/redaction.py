"""Secrets are taken out of what is written and printed: by the name they stand under, by shape, and by value.

By value: what stands in an environment variable with the name of a secret, and what `learn` has found in settings,
wherever it appears. Texts of models and data sets are not settings, and stay as they are.
"""

import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import quote

HIDDEN = "***"
# Characters of a value that is hidden inside of words, and of one that is hidden as a word of its own.
_SHORTEST, _SHORTEST_ALONE = 16, 6
_SHORTEST_TOKEN = 8  # characters of what stands under "token" alone, as words of a vocabulary do too
# Words of a name. Under a secret one everything is hidden; under others only what follows from the words around them.
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SECRET = {
    *"password passwords passwd passphrase passphrases pwd secret secrets credential credentials authorization".split()
}
_SECRET |= {*"bearer webhook webhooks cookie cookies".split()}
_SECRET_AT_THE_END = {*"auth oauth otp pat session".split()}
_OF_ACCESS = {  # before token, key or pass
    *"api access secret private auth account storage encryption signing ssh service subscription".split(),
    *"hf hub huggingface wandb openai anthropic github gitlab slack discord telegram bot aws azure google".split(),
    *"smtp mail ftp http proxy db database user admin root login deploy personal judge csrf".split(),
    *"bearer refresh client my id".split(),
}
_RUN_TOGETHER = re.compile(  # HFTOKEN
    rf"(?<![A-Za-z])({'|'.join(sorted(_OF_ACCESS - {'id', 'my'}))})(tokens?|keys?|pass)(?![A-Za-z])", re.IGNORECASE
)
_FILES = r"[\w./-]*\.(?:json|jsonl|safetensors|py|ya?ml|txt|md|csv|parquet|bin)\.?"
_PLAIN = "none|null|true|false|yes|no|on|off|enabled|disabled|required|optional"
# Code that reads or declares a secret, up to its first quote or bracket, and what guides write in its place.
_CODE = r"str|bytes|(?:Optional|Union)\[.*|[a-z_][a-z_.]*[(\[]|\{+\w*\}*"
_CODE += r"|empty|(?:hf_)?\.{2,}|hf_x+|my[a-z_ -]*key|your[a-z_ -]*|<your"
_HARMLESS = re.compile(rf"\s*|\*+|{_PLAIN}|<[^<>]*>|\[[^\[\]]*\]|\$.*|{_FILES}|{_CODE}", re.IGNORECASE | re.DOTALL)
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:%|/\d+)?")  # a metric's, such as a rate of passes
_MIXED = re.compile(r"(?=.*\d)(?=.*[A-Za-z]).{6,}")
_RANDOM = re.compile(r"(?<![A-Za-z0-9])(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]{12,}")
_SHAPES = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"hf_(?!x+\b|X+\b)(?:[A-Za-z0-9]{30,}|(?=[A-Za-z]*[0-9A-Z])[A-Za-z0-9]{10,})|api_org_[A-Za-z0-9]{20,}"
    r"|sk-(?=[\w-]{0,99}?[A-Za-z0-9]{12})(?:[\w-]{32,}|(?=[A-Za-z_-]*\d)[\w-]{16,})"
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|(?:xai|pplx)-[A-Za-z0-9]{20,}|tgp_v1_[\w-]{20,}|lsv2_[a-z]{2}_\w{20,}|(?:npm|gsk|r8)_[A-Za-z0-9]{30,}|(?:pypi|nvapi)-[\w-]{40,}|dckr_pat_[\w-]{20,}|wandb_v1_\w{20,}"
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
_NAMED = re.compile(
    r"(?<![\w.@-])(?P<dashes>-{0,2})(?P<name>[\w.-]{0,40}?(?:tok|key|secret|pass|pwd|auth|bearer|pat|session|otp"
    r"|credential|webhook|cookie)[\w.-]{0,40})(?P<close>\\*[\"']\]?)?(?P<between>\s*[:=]\s*|,?\s+|,)"
    r"(?P<open>[\[(]?(?:\\*[\"'])?)(?P<value>(?<=\")[^\"\n\\]*|(?<=')[^'\n\\]*|[^\s,;&\"'\\\])}]+)",
    re.IGNORECASE,
)
_LISTED = re.compile(
    r"(?<![\w.@-])(?P<name>[\w.-]{0,40}?(?:tok|key|secret|pass|pwd|auth|credential|cookie)[\w.-]{0,40})\\*[\"']?\s*"
    r"[:=](?P<items>\s*[\[(][^\[\]()\n]*[\])]|(?:[ \t]*\n[ \t]*- [^\n:]+)+"
    r"|\s*[^\s,;\"'()\[\]{}]+(?:,[^\s,;\"'()\[\]{}]+)+)",
    re.IGNORECASE,
)
_ITEM = re.compile(r"(?<![^\s,\[(\"'=])(?!-\s)[^\s,\[\](){}\"'\\]+(?![^\s,\])\"'\\])")
_QUOTE = r"\\*[\"']?"
_NAME_AND_VALUE = re.compile(  # of an environment in YAML
    rf"(\b(?:name|key){_QUOTE}\s*[:=]\s*{_QUOTE}(?P<name>[\w.-]{{1,80}}){_QUOTE}\s*,?\s*"
    rf"{_QUOTE}value{_QUOTE}\s*[:=]\s*{_QUOTE})(?P<value>[^\s,;\"'\\\]}})]+)"
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


def is_secret(name: str, value: Any, *, is_option: bool = False) -> bool:
    """Return whether a value is a secret because of the name that it stands under, such as that of an option."""
    if value is None or isinstance(value, bool | float) or _HARMLESS.fullmatch(text := str(value)):
        return False
    if "@" in name:  # pass@1
        return False
    *before, last = _words(name) or [""]
    if last == "pwd" and text[0] in "/~.":  # the shell's current folder
        return False
    if is_option and name.lower() in ("token", "key", "pass"):
        return True
    if _is_variable(name, text):
        return False
    is_number = isinstance(value, int) or _NUMBER.fullmatch(text) is not None
    if _is_secret_name(name) and not (is_number and last in ("auth", "session", "pat")):
        return True
    if is_number or "." in name:
        return False
    if last == "token" and not before:
        return len(text) >= _SHORTEST_TOKEN
    if last == "pass" and not before:
        return True
    is_mixed = _MIXED.fullmatch(text) is not None and not re.search(r"[<>|\[\]\s]", text)
    return (last == "token" and is_mixed) or (last in ("tokens", "key", "keys") and bool(_RANDOM.search(text)))


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
    own, last = name.lower().lstrip("-").replace("-", "_"), text.lower().rpartition(".")[2]
    return own.endswith(last) or last.endswith(own)


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


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORDS.findall(_RUN_TOGETHER.sub(r"\1_\2", name))]


@lru_cache(10_000)
def _is_secret_name(name: str) -> bool:
    """Return whether all that stands under a name is a secret."""
    words = _words(name)
    if words[-1:] == ["id"] and words[-2:-1] == ["key"]:  # AWS_ACCESS_KEY_ID
        words.pop()
    if not words or not _SECRET.isdisjoint(words) or words[-1] in _SECRET_AT_THE_END:
        return bool(words)
    is_of_access = not _OF_ACCESS.isdisjoint(words[-2:-1])
    if words[-1] in ("token", "tokens", "tok", "toke", "keys"):  # an option may be abbreviated
        return is_of_access
    return words[-1] in ("key", "pass") and (is_of_access or (name.isupper() and len(words) > 1))


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
        before = (None, *value)
        words = [_walk_word(word, before[place], hide, found, name) for place, word in enumerate(value)]
        if value and value[0] == "curl":
            words = [_without_login(word, before[place]) for place, word in enumerate(words)]
        return type(value)(words) if type(value) in (list, tuple) else words
    if name and is_secret(name, value):
        found.append((name, str(value)))
        return HIDDEN
    return hide(value) if isinstance(value, str) else value


def _walk_word(word: Any, before: Any, hide: Callable[[str], str], found: list[tuple[str, str]], name: str) -> Any:
    """Walk an item of a list, which may be `--name=value` or the value of the option before it."""
    if not isinstance(word, str):
        return _walk(word, hide, found, name)
    is_set = re.match(r"--[\w.-]+=", word) is not None
    option, _, value = word.partition("=") if is_set else (str(before), "", word)
    if not re.fullmatch(r"--[\w.-]+", option) or (word[:2] == "--" and not is_set):
        return _walk(word, hide, found, name)
    if not is_secret(option.lstrip("-"), value, is_option=True):
        return hide(word)
    found.append((option.lstrip("-"), value))
    return f"{option}={HIDDEN}" if is_set else HIDDEN


def _without_login(word: Any, before: Any) -> Any:
    """Return the word after curl's `-u` without the password."""
    is_login = before in ("-u", "--user") and isinstance(word, str) and ":" in word
    return f"{word.partition(':')[0]}:{HIDDEN}" if is_login else word


def _inner_name(name: str, key: str) -> str:
    """Return the name that decides about an item of a mapping: in `tokens`, `hf` stands for hf_tokens."""
    if _is_secret_name(name):
        return name
    is_of_several = _words(name)[-1:] in (["tokens"], ["keys"]) and not _is_secret_name(key)
    return f"{key}_{name}" if is_of_several else key


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
    text = _NAME_AND_VALUE.sub(
        lambda match: match[1] + (HIDDEN if is_secret(match["name"], match["value"]) else match["value"]), text
    )
    return _NAMED.sub(_redact_named, _LISTED.sub(_redact_listed, text))


def _redact_listed(match: re.Match[str]) -> str:
    """Hide the secrets of `api_keys: [a, b]`, of a list of YAML and of `api_keys: a,b`."""
    name, start = match["name"], match.start("items") - match.start()
    if _words(name)[-1:] not in (["tokens"], ["keys"]) and not _is_secret_name(name):
        return match[0]
    items = _ITEM.sub(lambda item: HIDDEN if is_secret(name, item[0]) else item[0], match[0][start:])
    return match[0][:start] + items


def _redact_named(match: re.Match[str]) -> str:
    """Hide the value of `name=value`, `"name": "value"` or `--name value`; prose such as `the token: got` stays."""
    is_option = match["dashes"] == "--"
    if _is_prose(match) or not is_secret(match["name"], match["value"], is_option=is_option):
        return match[0]
    return match[0][: match.start("value") - match.start()] + HIDDEN


def _is_prose(match: re.Match[str]) -> bool:
    """Return whether a name and a word after it are parts of a sentence: "the secret: model.json holds it"."""
    name, value, between = match["name"], match["value"], match["between"]
    rest = match.string[match.end() :][:20]
    goes_on = re.match(r"\.?[ ]+[A-Za-z]|\.$", rest) is not None and not _MIXED.fullmatch(value)
    if between.strip() in ("", ","):
        return match["dashes"] != "--" or value.startswith("--") or goes_on
    if match["open"][-1:] in ("'", '"') and match["open"] or not between[-1:].isspace():
        return False
    starts_line = not match.string[: match.start()].rpartition("\n")[2].strip(" -\t{")
    if len(_words(name)) > 1 or (starts_line and re.match(r"[ \t]*(?:[,;}\n]|$)", rest)):
        return goes_on
    is_password = name.lower() in ("password", "passwd", "passphrase", "pwd", "otp") and len(value) >= _SHORTEST_ALONE
    return not (_RANDOM.search(value) or (is_password and re.search(r"\d", value)))
