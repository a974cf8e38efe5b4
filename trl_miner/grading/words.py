r"""What words decide about an answer: names, dates and units, of which mathematics knows nothing.

math-verify takes words for units and drops them, so that 3:45 PM is 3:45 AM and 20 June is 20 July.
"""

import re
from collections import Counter

from .notation import TRIGONOMETRIC

_WRAPPER = re.compile(r"\\text\s*(?=\{)|\\[,;:! ]|\\q?quad(?![A-Za-z])|[{}~*\"$]")
_BLANKS = re.compile(r"(?:[\s~]|\\[,;:! ])+$")
_FILLER = re.compile(r"^(?:(?:the|a(?=\s+\w{3})|an|in|on|at|option|choice|answer|is|it)\s+)+(?=\S)")
_LETTERS = re.compile(r"\(?[^\W\d_](?:[^\W\d_]|[' .,()-])*")
# a minus between variables counts
_BETWEEN = re.compile(r"[().']|(?<=[^\W\d_]{3})-(?=[^\W\d_]{3})")
_DATE = re.compile(
    r"\b(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|"
    r"(?:nov|dec)(?:ember)?|(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?)\b"
)
_LIST = re.compile(r"\s*,\s*(?:and\s+)?|\s+and\s+")
_SYNONYMS = {
    "dne": "does not exist",
    "undefined": "does not exist",
    "none of these": "none of the above",
}
_UNITS = {
    name: words.split()[0]
    for words in (
        "mm millimeter millimetre;cm centimeter centimetre;m meter metre;km kilometer"
        " kilometre;inch in inches;foot ft feet;yard yd;mile mi;mg milligram;g gram gramme gm;kg"
        " kilogram kilo;ton tonne;pound lb gbp;ounce oz;ml milliliter millilitre;l liter"
        " litre;gallon gal;second s sec;minute min;hour h hr;day;week;month;year yr;dollar usd"
        " buck;cent;euro eur;yen;rupee;degree deg;radian"
        " rad;am;pm;newton;joule;watt;kw;volt;amp;hz;pa"
    ).split(";")
    for name in words.split()
}
_COMPOUND = {
    "mph": ("mile", "hour"),
    "kmh": ("km", "hour"),
    "kph": ("km", "hour"),
    "kmph": ("km", "hour"),
}
_CURRENCY = re.compile(r"\\?\$|\\(pounds|euro|yen|rupee)(?![A-Za-z])")
_UNIT_TOKEN = re.compile(r"[a-z]+|\^\s*(-?\d{1,3})|\S")
_BARE_UNIT = re.compile(
    r"(?<=[\d}\s])\s*([A-Za-z]{2}[A-Za-z./^{}\d ]*|[A-Za-z]/[A-Za-z][/^{}\d]*)$|(?<=\d)\s*[mshgl]$"
)
_BOUND = re.compile(
    r"\b(?:or|and) (?:more|less|fewer|greater|higher|lower|above|below)|\b(?:at (?:least|most)|up"
    r" to)\b"
)

Unit = dict[str, int]


def compare(gold: str, answer: str) -> bool | None:
    """Return whether an answer in plain notation says what the gold says; None where mathematics
    decides."""
    first, second = _flat(gold), _flat(answer)
    if _DATE.search(first):
        return _is_date(_date(first), _date(second)) and not re.search(r"\b(?:or|not)\b", second)
    if ":00" in first + second:  # a time, since nothing has a ratio to 0
        return first == second
    if _LETTERS.fullmatch(first):
        names = _names(first), _names(second)
        if names[0] == names[1] or (" and " in first and sorted(names[0]) == sorted(names[1])):
            return True
    if bool(_BOUND.search(first)) != bool(_BOUND.search(second)):
        return False
    units = split_unit(gold)[1], split_unit(answer)[1]
    return False if all(units) and units[0] != units[1] else None


def split_unit(text: str) -> tuple[str, Unit | None]:
    r"""Return `5` and km of `5\text{ km}`, with exponents; the text and None where no known unit
    ends it."""
    signs = {match[1] or "dollar" for match in _CURRENCY.finditer(text)}
    if len(signs) == 1:
        return _CURRENCY.sub("", text).strip(), {signs.pop().removesuffix("s"): 1}
    start = text.find("\\text")
    if text.endswith("^\\circ") and not TRIGONOMETRIC.search(text):
        return text[: text.rindex("^")], {"degree": 1}
    if re.search(r"\d'$", text):
        return text[:-1], {"foot": 1}
    if start < 0:
        match = _BARE_UNIT.search(text)
        start = match.start() if match else 0
    unit = _unit(_flat(text[start:])) if re.search(r"\d|\\pi", text[:start]) else None
    return (_BLANKS.sub("", text[:start]), unit) if unit else (text, None)


def _unit(text: str) -> Unit | None:
    exponents: Counter[str] = Counter()
    last, sign, power = "", 1, 1
    for match in _UNIT_TOKEN.finditer(text):
        token = match[0]
        name = next(
            (_UNITS[form] for form in (token, token.removesuffix("s")) if form in _UNITS), None
        )
        if token in ("/", "per"):
            sign = -1
        elif token in ("square", "sq", "cubic", "cu"):
            power = 2 if token.startswith("sq") else 3
        elif last and match[1]:
            exponents[last] = sign * int(match[1])
        elif token in _COMPOUND:
            exponents.update({_COMPOUND[token][0]: 1, _COMPOUND[token][1]: -1})
        elif name:
            exponents[name] += sign * power
            last, power = name, 1
        else:
            return None
    return dict(exponents)


def _flat(text: str) -> str:
    text = " ".join(_WRAPPER.sub(" ", text).casefold().split()).strip(" .,;")
    return re.sub(r"\b([ap])\.\s?m\b", r"\1m", text)


def _names(text: str) -> list[str]:
    names = (
        " ".join(_BETWEEN.sub(" ", _FILLER.sub("", name)).split()) for name in _LIST.split(text)
    )
    return [_SYNONYMS.get(name, name) for name in names]


def _date(text: str) -> set[str]:
    """Return the numbers of a date, and its month and weekday in three letters."""
    return {*re.findall(r"\d+", text), *(match[0][:3] for match in _DATE.finditer(text))}


def _is_date(gold: set[str], answer: set[str]) -> bool:
    """Return whether an answer has all parts of a date; it may also have a weekday or a year."""
    more = answer - gold
    return gold <= answer and not any(part.isdecimal() and int(part) <= 31 for part in more)
