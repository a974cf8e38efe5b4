r"""What words decide about an answer: letters of options, times, dates, yes and no, names."""

import re

_FILLER = r"(?i)^(?:(?:the|an?(?=\s+\w{2})|final|correct|answer|is|it|option|choice|in|on|at)[\s:]+)+(?=\S)"
_OPTION = r"(?:\(([A-J])\)|([A-J])(?:[).:](?=\s|$)|$))(?![-+*/^=_(\[!])\s*(.*)"
_ANOTHER = r"\([A-J]\)|\b(?:or|and|not)\b|(?<![A-Za-z])[A-J](?:\)|$)"
_TIME = r"(?:at )?0?(\d{1,2}:\d{2})\s*([ap]m)?"
# the first three letters of a month or a day of the week, or what could deny one
_DATE = (
    r"\b(?:jan(?=(?:uary)?\b)|feb(?=(?:ruary)?\b)|mar(?=(?:ch)?\b)|apr(?=(?:il)?\b)|may\b|jun(?=e?\b)|jul(?=y?\b)"
    r"|aug(?=(?:ust)?\b)|sep(?=(?:t|tember)?\b)|oct(?=(?:ober)?\b)|nov(?=(?:ember)?\b)|dec(?=(?:ember)?\b)"
    r"|(?:mon|tue|wed|thu|fri|sat|sun)(?=(?:s|nes|rs|ur)?(?:day)?\b))"
)
_YES_OR_NO = r"\b(?:yes|no|true|false|but|or|wait|maybe)\b"


def flat(text: str) -> str:
    """Return the words of a text in one notation, without commands, braces and outer marks."""
    text = " ".join(re.sub(r"\\text|\\[{} ]|[{}~\"`*\\]", " ", text).split())
    text = re.sub(r"(?<=[apAP])\.\s?(?=[mM]\b)|(?<=\() | (?=\))", "", text)
    return text.strip(" .,;:'")


def verdict(gold: str, said: str) -> bool | None:
    """Return whether a flat text says what a flat reference does; None for one of other kinds."""
    if letter := re.fullmatch(r"\(?([A-J])(?:\)|[.:])?", gold):
        return option(said) == letter[1]
    gold, said = gold.casefold(), said.casefold()
    if time := re.fullmatch(_TIME, gold):
        other = re.fullmatch(_TIME, said)
        return other is not None and time.groups() == other.groups()
    if re.search(_DATE, gold) and len(gold.split()) < 6:
        parts = [
            sorted(re.findall(rf"\d+|\b(?:not|or|before|after)\b|{_DATE}", text))
            for text in (gold, said)
        ]
        return parts[0] == parts[1]
    if yes := re.match(r"(?:yes|no|true|false)(?=[,.;:]|$)", gold):
        return said.startswith(yes[0]) and {*re.findall(_YES_OR_NO, said)} == {yes[0]}
    return None


def option(flat: str) -> str | None:
    """Return the letter of the option that a flat text names; None if it names none, or several."""
    match = re.fullmatch(_OPTION, re.sub(_FILLER, "", flat))
    return None if match is None or re.search(_ANOTHER, match[3]) else match[1] or match[2]


def names(flat: str) -> list[str]:
    """Return the names that a flat text lists, in one case, without articles and marks."""
    text = re.sub(r"[().]|(?<=[a-z]{3})-(?=[a-z]{3})", " ", re.sub(_FILLER, "", flat).casefold())
    return [" ".join(part.split()) for part in re.split(r",\s*(?:and\s+)?|\s+and\s+", text)]
