r"""Units behind numbers: which one it is, and how many of the base unit.

`5\text{ km}` is 5 with km, that is 5000 with m; words that are no unit (`5\text{ apples}`) are kept
as words. Nothing here changes a number.
"""

import re
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from math import prod

_TABLE = """
m meter metre; mm millimeter millimetre = 1/1000 m; cm centimeter centimetre = 1/100 m;
dm decimeter decimetre = 1/10 m; km kilometer kilometre kilometers = 1000 m; nm nanometer = 1/1000000000 m;
µm = 1/1000000 m;
in inch inches = 254/10000 m; ft foot feet = 3048/10000 m; yd yard = 9144/10000 m; mi mile = 1609344/1000 m;
g gram gramme gm; mg milligram = 1/1000 g; kg kilogram kilo = 1000 g; t ton tonne;
lb pound gbp; oz ounce; l liter litre; ml milliliter millilitre = 1/1000 l; gal gallon;
s second sec; ms millisecond = 1/1000 s; min minute = 60 s; h hour hr = 3600 s; day = 86400 s; week = 604800 s;
month; year yr = 12 month; usd dollar buck; cent = 1/100 usd; eur euro; yen; rmb yuan; jiao = 1/10 rmb; rupee rs;
deg degree; rad radian; celsius; fahrenheit; kelvin k; n newton; j joule; kj = 1000 j; w watt; kw = 1000 w; v volt;
a amp ampere; hz hertz; khz = 1000 hz; mhz = 1000000 hz; pa pascal; kpa = 1000 pa; ev; mev = 1000000 ev; mol mole; ohm;
coulomb c; tesla;
mph = 1609344/3600000 m/s; kmh kph kmph = 1000/3600 m/s; bit; byte; knot; atm; bar; cal; kcal = 1000 cal
"""
# Chinese names, whose longest match counts.
_CHINESE = dict(
    pair.split("=")
    for pair in """
    千米=km 公里=km 厘米=cm 分米=dm 毫米=mm 微米=µm 纳米=nm 米=m 千克=kg 公斤=kg 毫克=mg 克=g 吨=ton 毫升=ml 升=l
    小时=h 分钟=min 毫秒=ms 秒钟=s 秒=s 时=h 天=day 星期=week 个月=month 年=year 元=rmb 角=jiao 度=deg
    平方=square 立方=cubic 每=per 千瓦=kw 瓦=w 牛=n 焦耳=j 焦=j 伏=v 安培=amp 赫兹=hz 帕=pa
    """.split()
)
_CHINESE_NAME = re.compile("|".join(sorted(_CHINESE, key=len, reverse=True)))


def _read_table() -> dict[str, tuple[Fraction, dict[str, int]]]:
    units: dict[str, tuple[Fraction, dict[str, int]]] = {}
    for names, _, meaning in (entry.partition("=") for entry in _TABLE.split(";")):
        first, *others = names.split()
        size, base = meaning.split() or ("1", first)
        above, _, below = base.partition("/")
        units[first] = Fraction(size), {above: 1} | ({below: -1} if below else {})
        units |= dict.fromkeys(others, units[first])
    return units


_UNITS = _read_table()
# Of "5 km east" and "5 km west" the words tell which one is meant.
_DIRECTIONS = {
    *"north south east west left right up down forward backward gain loss increase decrease".split()
}
# Letters that are units in one case only.
_UPPER = {*"NJWVACK"}
_GENERIC = {
    *"unit way people person piece item total time number different possible total point".split()
}
# Words that change a number, or say that it is none.
_CHANGING = re.compile(
    r"\b(?:or|and|not|no|more|less|fewer|than|at|least|most|up|over|under|above|below|between|to|minus|plus|negative|"
    r"thousands?|millions?|billions?|trillions?|hundreds?|dozens?|half|hal(?:f|ves)|thirds?|quarters?|fourths?|fifths?|"
    r"sixths?|sevenths?|eighths?|ninths?|tenths?|squared|cubed|factorial|times|double|pairs?|score|point|"
    r"one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|thirty|forty|fifty|percent|infinit\w*|"
    r"maybe|perhaps|possibly|approximately|wrong|if|when|unless|except|without|mod|modulo|base|also|either|"
    r"remainder|true|false|undefined|does|do|is|are|isn|aren|cannot|can)\b"
)
_SCALES = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_CHINESE_SCALES = {"百万": 6, "千万": 7, "万": 4, "亿": 8}
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_FILLERS = {*"* . · ( ) each the of".split()}
_TOKEN = re.compile(r"[A-Za-zµΩ]+|\^\s*\(?\{?\s*(-?\d{1,2})\s*\}?\)?|\S")


@dataclass(frozen=True)
class Unit:
    """A unit: `size` of the base unit with these exponents, or words that are no unit."""

    size: Fraction = Fraction(1)
    exponents: tuple[tuple[str, int], ...] | None = None
    words: str = ""

    def may_equal(self, other: "Unit") -> bool:
        """Return whether two quantities of these units may be compared."""
        mine, theirs = _stems(self.words), _stems(other.words)
        directions = mine & _DIRECTIONS, theirs & _DIRECTIONS
        if all(directions) and directions[0] != directions[1]:
            return False
        if self.exponents is not None and other.exponents is not None:
            return self.exponents == other.exponents
        if self.exponents is not None or other.exponents is not None:
            return False
        return not mine or not theirs or bool(mine & theirs) or bool((mine | theirs) & _GENERIC)


def _stems(words: str) -> set[str]:
    return {re.sub(r"(?:es|s)$", "", word) for word in re.findall(r"[a-z]+", words.casefold())} - {
        *"the a an of in per each".split()
    }


def scale(words: str) -> tuple[int, str]:
    """Return the power of ten that words begin with, and the other words: (6, "dollars") for
    "million dollars"."""
    for name, power in _CHINESE_SCALES.items():
        if words.startswith(name):
            return power, words.removeprefix(name)
    first, _, rest = words.strip().partition(" ")
    power = _SCALES.get(first.casefold(), 0)
    return (power, rest) if power else (0, words)


def read(text: str) -> Unit | None:
    r"""Return the unit that a text names, such as `km/h`, `m s^{-2}` or `square meters`; else
    None."""
    factors: list[tuple[str, int]] = []  # names of the table and their exponents
    sign, power = 1, 1
    text = text.replace("²", "^2").replace("³", "^3").replace("\\cdot", " ")
    text = _CHINESE_NAME.sub(lambda match: f" {_CHINESE[match[0]]} ", text)
    for match in _TOKEN.finditer(text):
        token = match[0].casefold()
        is_letter = len(token) == 1 and token.isalpha() and token != "l"
        if is_letter and match[0].isupper() != (token.upper() in _UPPER):
            return None
        if token in ("/", "per"):
            sign = -1
        elif token in _POWERS:
            power = _POWERS[token]
        elif match[1] and factors:
            name, exponent = factors.pop()
            factors.append((name, exponent * int(match[1])))
        elif name := _named(token):
            factors.append((name, sign * power))
            power = 1
        elif token not in _FILLERS:
            return None
    if not factors:
        return None
    exponents: Counter[str] = Counter()
    for name, exponent in factors:
        for base, count in _UNITS[name][1].items():
            exponents[base] += count * exponent
    size = prod((_UNITS[name][0] ** exponent for name, exponent in factors), start=Fraction(1))
    return Unit(size, tuple(sorted((base, count) for base, count in exponents.items() if count)))


def _named(token: str) -> str:
    forms = (token, token.removesuffix("s"), token.removesuffix("es"))
    return next((form for form in forms if form in _UNITS), "")


def words(text: str) -> Unit | None:
    """Return words that name what is counted as a unit without a size; None for words that change
    the number before them."""
    plain = " ".join(text.casefold().split())
    if not re.fullmatch(r"[^\W\d_][^\d\\=<>+*^_]*", plain) or _CHANGING.search(plain):
        return None
    return Unit(words=plain)


DEGREE = Unit(Fraction(1), (("deg", 1),))


def currency(name: str) -> Unit:
    """Return the unit of a currency's sign: "$", "euro", "pounds", "yen", "rupee" or a code."""
    short = {"$": "usd", "pounds": "gbp", "us": "usd", "jpy": "yen", "inr": "rupee", "cny": "rmb"}
    name = name.casefold()
    return read(short.get(name, name)) or Unit(words=name)
