r"""Which option of a multiple-choice question an answer chooses.

As in arXiv 2601.04731, it is what follows "The answer is" up to the first full stop. The published
code accepts substrings, so that "not aspirin" counts for "aspirin"; here an option must be named in
full, by its letter, its text or both:

    The answer is B.      The answer is: (B) aspirin.      **The answer is B (aspirin)**
    Answer: [B]           The correct answer is aspirin    So it must be \boxed{B}.

The last such place counts. A box that names no option is a number on the way, and is passed over.
"""

import re
import unicodedata
from collections.abc import Sequence
from string import ascii_lowercase

_PLACE = (
    r"the (?:(?:correct|right|best|final|most likely) )*(?:answer|option|choice) is(?!\w)"
    r"|^[^\w\n]{0,20}(?:(?:correct|final) )?answer\s{0,9}:"
)
# in the line before a box, which then says no more than the line does
_DENIAL = r"\b(?:not|never|cannot|wrong|incorrect|if|unless|or)\b|n['’]t\b"
_MARKUP = r"\\(?:f?boxed|text|textbf|mathrm|mathbf)\s*(?=\{)|\\[()]|[*`$_{}\"“”‘’]|(?<!\w)'|'(?!\w)"


def chosen(text: str, options: Sequence[str]) -> int | None:
    """Return the index of the option that a text chooses by its last "The answer is" or box."""
    boxed = None  # by a box in words that do not let it count
    places = [*re.finditer(rf"(?im){_PLACE}|(\\f?boxed\s{{0,9}}(?=\{{))", text)]
    for place in reversed(places[-50:]):  # a hostile answer has thousands
        index = _named(text[place.end() : place.end() + 2_000], options)
        line = text[: place.start()].rpartition("\n")[2]
        if not place[1] or not (index is None or re.search(f"(?i){_DENIAL}|{_PLACE}", line)):
            return index if boxed in (None, index) else None
        boxed = index if boxed is None else boxed
    return None


def option_index(gold: object, options: Sequence[str], first: int = 0) -> int | None:
    """Return the index of a reference, from 0; None if it is none of the options.

    A text is the text of one option, or a number counted from `first`, or names an option as an
    answer does: `B`, `B) ibuprofen`.
    """
    same = [index for index, option in enumerate(options) if is_option(gold, option)]
    if isinstance(gold, str) and len(same) == 1:
        return same[0]
    text = str(gold).removesuffix(".0")
    if not text.isdecimal():
        return _named(text, options)
    return int(text) - first if 0 <= int(text) - first < len(options) else None


def is_option(gold: object, option: str) -> bool:
    """Return whether a reference is the text of an option, in other case or markup."""
    return _plain(option) == _plain(str(gold))


def _named(text: str, options: Sequence[str]) -> int | None:
    """Return the index of the option with which a text begins; "A. B." names two."""
    line = _plain(text.strip(" \t\r\n:*`'\"").partition("\n")[0])
    answer = re.sub(r"^[\s:,=]*(?:(?:the )?(?:option|choice)\s+)?", "", line)
    ends = _ends(answer, options)
    longest = max(ends, default=0)
    others = _ends(answer[longest:].lstrip(". "), options)
    return ends.index(longest) if longest and ends.count(longest) == 1 and not any(others) else None


def _ends(answer: str, options: Sequence[str]) -> list[int]:
    """Return where the full name of each option ends with which an answer begins; 0: it does not."""
    ends = []
    for letter, option in zip(ascii_lowercase, map(_plain, options), strict=False):
        text, mark = re.escape(option) or "(?!)", rf"[(\[]?{letter}[)\]]?"
        name = rf"(?:(?:{mark}[.:,]?(?: -)? )?[(\[]?{text}[)\]]?(?: \({letter}\))?|{mark})"
        match = re.match(rf"{name}(?=\s*[,;!?]*(?:$|[.。](?=\s|$)))", answer)
        ends.append(match.end() if match else 0)
    return ends


def _plain(text: str) -> str:
    """Return a text in one case and plain characters, without markup and the last full stop."""
    text = re.sub("[‐‑‒–—−]", "-", unicodedata.normalize("NFKC", text))
    return " ".join(re.sub(_MARKUP, "", text).casefold().split()).rstrip("。. ")
