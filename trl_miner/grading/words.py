r"""What words decide about an answer: names, options, dates, times of day, numbers in words.

Everything here compares texts in which commands, braces and repeated blanks no longer stand.
"""

import re
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from .notation import plain
from .parsing import INFINITY, Node, number

_WRAPPER = re.compile(
    r"\\(?:text[a-z]*|math(?:rm|bf|it|sf|tt)|boldsymbol|operatorname|mbox|boxed|fbox|emph|underline|left|right"
    r"|displaystyle|q?quad)(?![A-Za-z])|\\[,;:! ()\[\]]|[{}~*\"$]"
)
_FILLER = re.compile(
    r"^(?:(?:the|a(?=\s+\w{2})|an|in|on|at|option|choice|answer|final|correct|is|it|it's|答案|是|为)[\s:：]+)+(?=\S)"
)
# a minus between variables counts
_BETWEEN = re.compile(r"[().']|(?<=[^\W\d_]{3})-(?=[^\W\d_]{3})")
_BLANK = re.compile(r"(?<![0-9A-Za-z]) | (?![0-9A-Za-z])")
_LIST = re.compile(r"\s*,\s*(?:and\s+)?|\s+and\s+")
_SYNONYMS = {
    "dne": "does not exist", "undefined": "does not exist", "none of these": "none of the above",
    "not defined": "does not exist", "是": "yes", "否": "no", "对": "true", "错": "false",
}  # fmt: skip
_MONTHS = "jan(?:uary)? feb(?:ruary)? mar(?:ch)? apr(?:il)? may june? july? aug(?:ust)? sept?(?:ember)? oct(?:ober)?"
_DAYS = "mon tues? wed(?:nes)? thu(?:rs)? fri sat(?:ur)? sun"
_DATE = re.compile(
    rf"\b(?:{'|'.join(_MONTHS.split())}|(?:nov|dec)(?:ember)?|(?:{'|'.join(_DAYS.split())})(?:day)?)\b"
)
_CLOCK = re.compile(
    r"(?:at )?(?P<hour>\d{1,2})(?::(?P<minute>\d{2})(?::(?P<second>\d{2}))?)?\s*"
    r"(?P<half>am|pm)?"
)
_OPTION = re.compile(
    r"(?:(?:the |my |correct |final )*(?:answer|option|choice)(?: is)?:? *)*"
    r"(?:\((?P<round>[a-j])\)|(?P<bare>[a-j])(?P<mark>\)|\.|:|$))(?P<rest>.*)"
)
_SECOND_OPTION = re.compile(r"\([a-j]\)|\b(?:or|and|not)\b\s*\(?[a-j]\b|\b[a-j]\)|\bnot\b")
_UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
    " sixteen seventeen eighteen nineteen"
).split()
_NUMBERS = {word: number for number, word in enumerate(_UNITS)} | {
    word: 10 * tens
    for tens, word in enumerate("twenty thirty forty fifty sixty seventy eighty ninety".split(), 2)
}
_NO_SOLUTION = re.compile(
    r"(?:there (?:is|are) )?no (?:real |integer )?solutions?(?: exists?)?|(?:the )?empty set|无解"
)
_POWERS = {"thousand": 10**3, "million": 10**6, "billion": 10**9}


def flat(text: str) -> str:
    """Return a text in plain characters, with one blank where it has several, in its own case."""
    text = " ".join(_WRAPPER.sub(" ", plain(text)).split()).strip(" .,;。")
    text = re.sub(r"(?<=\() | (?=\))", "", text)
    return re.sub(r"\b([apAP])\.\s?([mM])\b\.?", r"\1\2", text)


def are_same_words(gold: str, answer: str) -> bool:
    """Return whether two flat texts say the same: the same names, or the same yes or no.

    Case counts where a text has no word, as `r` is not `R`.
    """
    gold, answer = re.sub(r"\s+(?=[.,])", "", gold), re.sub(r"\s+(?=[.,])", "", answer)
    if not re.search(r"[^\W\d_]{2}", gold):
        return are_same_characters(gold, answer)
    first, second = gold.casefold(), answer.casefold()
    if first in ("yes", "no"):
        return _yes_or_no(second) == first
    names = _names(first), _names(second)
    return names[0] == names[1] or (" and " in first and sorted(names[0]) == sorted(names[1]))


def several_options(text: str) -> list[str]:
    """Return the letters of several options, A, B or (A) and (B); ABD is in order as it stands."""
    if re.fullmatch("[A-J]{2,5}", text) and list(text) == sorted(set(text)):
        return list(text)
    letters = [part.strip(" ().") for part in _LIST.split(text)]
    return sorted(letters) if all(re.fullmatch("[A-Z]", letter) for letter in letters) else []


def are_same_characters(gold: str, answer: str) -> bool:
    """Return whether two texts are one but for blanks."""
    return bool(gold) and _BLANK.sub("", gold) == _BLANK.sub("", answer)


def _yes_or_no(text: str) -> str | None:
    """Return the yes or no with which a text begins, unless both occur or it takes it back."""
    words = re.findall(r"\w+", text)
    said = {word for word in words if word in ("yes", "no")}
    match = re.match(r"(yes|no|是|否)(?=$|[,.;:!—-]|\s*[,;:])", text)
    if match is None or len(said) > 1 or {"but", "wait", "actually", "maybe", "however"} & {*words}:
        return None
    return _SYNONYMS.get(match[1], match[1])


def _names(text: str) -> list[str]:
    names = (
        " ".join(_BETWEEN.sub(" ", _FILLER.sub("", name)).split()) for name in _LIST.split(text)
    )
    return [_SYNONYMS.get(name, name) for name in names]


def meaning(text: str) -> Node | None:
    """Return the value that a flat text in words has: a number, no solution, all real numbers."""
    text = _FILLER.sub("", text.casefold())
    if _NO_SOLUTION.fullmatch(text):
        return ("set",)
    if re.fullmatch(r"(?:all )?(?:real numbers|reals)", text):
        return ("numbers", "R")
    if match := re.fullmatch(r"(?:positive |\+ ?)?(negative |- ?)?infinity", text):
        return ("negative", INFINITY) if match[1] else INFINITY
    value = _number_in_words(text)
    return None if value is None else number(value)


def _number_in_words(text: str) -> int | None:
    total = current = 0
    last_power = 10**12
    words = [word for word in re.split(r"[\s-]+", text) if word != "and"]
    for word in words:
        value, power = _NUMBERS.get(word), _POWERS.get(word)
        if value is not None and (
            current % 100 == 0 or (current % 10 == 0 < value < 10 < current % 100 - 9)
        ):
            current += value
        elif word == "hundred" and 0 < current < 10:
            current *= 100
        elif power and current and power < last_power:
            total, current, last_power = total + current * power, 0, power
        else:  # "two three"
            return None
    return total + current if words else None


# Options.


class Option(NamedTuple):
    """The letter of an option, and the text that stands behind it."""

    letter: str
    rest: str


def option(text: str) -> Option | None:
    """Return the option that a flat text names; None if it names none, or several."""
    match = _OPTION.fullmatch(text.casefold())
    if match is None:
        return None
    rest = match["rest"].strip(" .:")
    if re.match(r"[-+*/^=_(\[!]", match["rest"]):  # (A)(B + C)
        return None
    if _SECOND_OPTION.search(rest) or (rest and not match["round"] and match["mark"] == ""):
        return None
    start = len(text) - len(match["rest"])
    return Option((match["round"] or match["bare"]).upper(), text[start:].strip(" .:"))


def is_option(text: str) -> bool:
    """Return whether a flat text is the letter of an option, with or without brackets."""
    return re.fullmatch(r"\(?[A-J][).]?", text) is not None and text.count("(") <= text.count(")")


# Times of day.


class Clock(NamedTuple):
    """A time of day, in seconds from midnight: several where AM or PM is not said."""

    shown: int  # as on a dial, with its hour as written
    half: str | None
    seconds: frozenset[int]


def clock(text: str) -> Clock | None:
    """Return the time of day that a flat text tells; None if it tells none."""
    text = re.sub("^(?:12 )?(noon|midnight)$", _half_of, text.casefold())
    match = _CLOCK.fullmatch(text)
    if match is None or not (match["minute"] or match["half"]):
        return None
    half = match["half"]
    hour, minute, second = (int(match[name] or 0) for name in ("hour", "minute", "second"))
    if hour > 24 or minute > 59 or second > 59 or (half and not 0 < hour <= 12):
        return None
    if half:
        hours = [hour % 12 + 12 * (half == "pm")]
    elif hour > 12 or hour == 0 or text.startswith("0"):
        hours = [hour % 24]
    else:
        hours = [hour % 12, hour % 12 + 12]
    rest = minute * 60 + second
    return Clock(hour * 3600 + rest, half, frozenset(each * 3600 + rest for each in hours))


def _half_of(match: re.Match[str]) -> str:
    return "12 pm" if match[1] == "noon" else "12 am"


def are_same_times(gold: Clock, answer: Clock) -> bool:
    """Return whether two times are one. Where neither says AM or PM, they must look the same."""
    if gold.half is None and answer.half is None:
        return gold.shown == answer.shown
    return bool(gold.seconds & answer.seconds)


def ratio_of(text: str) -> Fraction | None:
    """Return 3/4 for 3:04, if that could be a ratio in its lowest terms as well as a time."""
    if not re.fullmatch(r"\d{1,2}:\d\d", text) or text.endswith(":00"):
        return None
    above, below = map(int, text.split(":"))
    ratio = Fraction(above, below)
    return ratio if ratio.denominator == below else None


# Dates.


_ISO_DATE = re.compile(r"[12]\d{3}-[01]\d-[0-3]\d")


def is_date(text: str) -> bool:
    """Return whether a short flat text names a month or a day of the week, or is 2024-03-05."""
    if _ISO_DATE.fullmatch(text):
        return True
    return len(text.split()) <= 6 and _DATE.search(text.casefold()) is not None


def are_same_dates(gold: str, answer: str) -> bool:
    """Return whether an answer has all parts of a date; it may also have a weekday or a year."""
    if _ISO_DATE.fullmatch(gold) and _ISO_DATE.fullmatch(answer):
        return gold == answer
    first, second = _date(gold.casefold()), _date(answer.casefold())
    more = second - first
    is_denied = re.search(r"\b(?:or|not|before|after|until)\b", answer.casefold())
    return (
        first <= second
        and not is_denied
        and not any(
            (part.isdecimal() and int(part) <= 31) or _DATE.fullmatch(part) and part[:3] in _MONTHS
            for part in more
        )
    )


def _date(text: str) -> set[str]:
    """Return the numbers of a date, and its month and weekday in three letters."""
    return {*re.findall(r"\d+", text), *(match[0][:3] for match in _DATE.finditer(text))}


# Sentences.

_VERB = re.compile(
    r"(?<![A-Za-z\\])(?:is|are|equals|was|be|has (?:length|area|measure)|为|是)(?![A-Za-z])[:\s]*"
)
_DENIED = re.compile(
    r"\b(?:not|never|no|isn|aren|cannot|can't|maybe|perhaps|might|may|could|probably|possibly|unless|if|or|either|"
    r"neither|nor|but|wrong|false|incorrect|at least|at most|less|more|greater|fewer|than|between|would|should|guess|"
    r"think|believe|except|approximately|about)\b"
)


def ends_of_sentence(text: str) -> Iterator[str]:
    """Yield what a sentence says that something is: the part behind its verb, the last verb first;
    nothing if the sentence denies, doubts or restricts anything."""
    if _DENIED.search(flat(text).casefold()):
        return
    for match in reversed([*_VERB.finditer(text)]):
        rest = text[match.end() :].strip()
        if rest and match.start() > 0:
            yield rest
