r"""What words decide about an answer: letters of options, times, dates, yes and no, names."""

import re

_FILLER = re.compile(
    r"^(?:(?:the|an?(?=\s+\w{2})|final|correct|answer|is|it|option|choice|in|on|at)[\s:]+)+(?=\S)", re.IGNORECASE
)  # fmt: skip
_LETTER = re.compile(r"\(?([A-J])(?:\)|[.:])?")
_OPTION = re.compile(r"(?:\(([A-J])\)|([A-J])(?:[).:](?=\s|$)|$))(?![-+*/^=_(\[!])\s*(.*)")
_ANOTHER = re.compile(r"\([A-J]\)|\b(?:or|and|not)\b|(?<![A-Za-z])[A-J](?:\)|$)")
_YES = re.compile(r"(?:yes|no|true|false)(?=[,.;:]|$)")
_YES_OR_NO = re.compile(r"\b(?:yes|no|true|false|but|or|wait|maybe)\b")
_TIME = re.compile(r"(?:at )?0?(\d{1,2}:\d{2})\s*([ap]m)?")
_DATE = re.compile(
    r"\b(?:jan|feb|mar|apr|may|june?|july?|aug|sept?|oct|nov|dec)(?:uary|ruary|ch|il|ust|ember|ober)?\b"
    r"|\b(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?\b"
)  # fmt: skip


def flat(text: str) -> str:
    """Return the words of a text in one notation, without commands, braces and outer marks."""
    text = " ".join(re.sub(r"\\text|\\[{} ]|[{}~\"`*\\]", " ", text).split())
    text = re.sub(r"(?<=[apAP])\.\s?(?=[mM]\b)|(?<=\() | (?=\))", "", text)
    return text.strip(" .,;:'")


def verdict(gold: str, said: str) -> bool | None:
    """Return whether a flat text says what a flat reference does; None for one of other kinds."""
    if letter := _LETTER.fullmatch(gold):
        return option(said) == letter[1]
    gold, said = gold.casefold(), said.casefold()
    if time := _TIME.fullmatch(gold):
        other = _TIME.fullmatch(said)
        return other is not None and time[1] == other[1] and time[2] in (other[2] or time[2], None)
    if _DATE.search(gold) and len(gold.split()) < 6:
        return _date(gold) == _date(said)
    if yes := _YES.match(gold):
        return said.startswith(yes[0]) and {*_YES_OR_NO.findall(said)} == {yes[0]}
    return None


def option(flat: str) -> str | None:
    """Return the letter of the option that a flat text names; None if it names none, or several."""
    match = _OPTION.fullmatch(_FILLER.sub("", flat))
    return None if match is None or _ANOTHER.search(match[3]) else match[1] or match[2]


def _date(flat: str) -> list[str]:
    """Return the numbers and words of a date in order, its names in three letters."""
    words = re.findall(r"\d+|[a-z]{3,}", flat)
    return sorted(word[:3] if _DATE.fullmatch(word) else word for word in words)


def same_names(gold: str, answer: str) -> bool:
    """Return whether two flat texts are the same names; those joined by "and" have no order."""
    golds, answers = _names(gold), _names(answer)
    return golds == answers or (" and " in gold and sorted(golds) == sorted(answers))


def _names(flat: str) -> list[str]:
    parts = re.split(r"\s*,\s*(?:and\s+)?|\s+and\s+", _FILLER.sub("", flat).casefold())
    return [
        " ".join(re.sub(r"[().]|(?<=[a-z]{3})-(?=[a-z]{3})", " ", part).split()) for part in parts
    ]
