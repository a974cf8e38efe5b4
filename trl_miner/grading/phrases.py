r"""Where a text without a box says its final answer.

A small grammar of sentences, which finds one answer or none. In this order:

1. "The answer is 5." All sentences of this form must say the same.
2. A conclusion that ends the text: "Therefore, the area is 5."
3. A last line that is an answer and nothing else.

A sentence that denies ("not 5"), doubts ("maybe", "I think"), asks or takes back ("wait", "no") says
nothing, and neither does a text that takes back what it has said.
"""

import re
from collections.abc import Sequence

from . import words
from .parsing import readings

_NAME_WORDS = 4
_MARKUP = re.compile(r"\*\*|__|`|^\s*#+\s*(?!#)|^\s*>\s*", re.MULTILINE)
# A full stop that is no decimal point and no part of "a.m."
_SENTENCE = re.compile(
    r"(?<=[.!?。])(?<!\b[ap]\.)(?<!\b[ap]\.m\.)(?:\s+|$)|\n{2,}|\n(?=\s*[A-Z#\\$])"
)
_LEAD = (
    r"(?:(?:so|thus|therefore|hence|then|finally|and|now|ok|okay|yes|consequently|in conclusion|in summary|"
    r"as a result|accordingly|we conclude that|we find that|we see that|we get that|it follows that|"
    r"this means that|this means|which means|altogether|conclusion|to conclude|putting it all together)[,:]?\s+)*"
)
_ANSWER = re.compile(
    rf"{_LEAD}(?:the |my |our )?(?:final |correct |right |numerical |exact )?(?:answer|solution|result)"
    r"(?: (?:to|of|for) (?:the|this|your) (?:question|problem|exercise|equation|task))?"
    r"\s*(?:is|are|equals|must be|turns out to be|comes out to(?: be)?|:|：|=)\s*:?\s*(?P<value>.*)",
    re.IGNORECASE | re.DOTALL,
)
_MARKED = re.compile(
    r"####\s*(?P<value>.+)|(?:最终)?(?:答案|答)(?:是|为|：|:)+\s*(?P<other>.+)", re.DOTALL
)
_CONCLUSION = re.compile(
    r"(?:(?:so|thus|therefore|hence|consequently|in conclusion|finally|altogether|as a result|we (?:get|have|find|"
    r"obtain|conclude)|this (?:gives|yields|means)|which (?:gives|yields))\b[,:]?\s*)+(?P<rest>.+)",
    re.IGNORECASE | re.DOTALL,
)
_VERB = re.compile(
    r"(?:^|.*?[\s,])(?:is|are|equals|get|gets|have|has|find|obtain|gives|yields|to be|that)[:\s]\s*(?P<value>[^:]+)$",
    re.DOTALL,
)
# A last line that names what was asked for: "Product: 92."
_LABELLED = re.compile(
    r"(?:the )?(?:product|sum|total|difference|quotient|remainder|value|area|volume|perimeter"
    r"|probability)\s*[:=]\s*(?P<value>.+)",
    re.IGNORECASE,
)
_DOUBT = re.compile(
    r"\b(?:not|no|nor|never|neither|cannot|\w+n't|\w+n’t|maybe|perhaps|might|may|could|can|would|should|probably|possibly|"
    r"likely|seems?|appears?|guess\w*|think|thought|believe\w*|assum\w+|suppos\w+|suspect|doubt\w*|if|unless|whether|or|"
    r"either|but|however|although|though|except|rather|instead|wrong|incorrect|false|mistak\w+|error|wait|actually|"
    r"hmm+|oops|sorry|correction|alternatively|first|initially|earlier|previous\w*|claims?|claimed|says?|said|"
    r"least|most|than|between|nearly|almost|unsure|uncertain|sure|know|unknown|hope|try|let me|check|recheck|verify|"
    r"student|someone|example|bound|upper|lower)\b",
    re.IGNORECASE,
)
_TAKEN_BACK = re.compile(
    r"\b(?:not|no|never|wait|actually|hmm+|oops|sorry|correction|however|but|wrong|incorrect|mistak\w+|error|"
    r"instead|alternatively|rather|maybe|perhaps|scratch|revis\w+|reconsider\w*|unless|or|false|another|different|"
    r"second thought|\w+n't|answers?|really|doubt\w*|unsure|uncertain)\b",
    re.IGNORECASE,
)
_CLAUSE = re.compile(r",\s+(?:which|as|since|because|where)\s.*$", re.DOTALL)


def final_answer(text: str) -> str | None:
    """Return the final answer of a text without a box; None where it says none, or several."""
    sentences = [*filter(None, map(str.strip, _SENTENCE.split(_MARKUP.sub(" ", text))))]
    said = [
        (place, value)
        for place, sentence in enumerate(sentences)
        if (value := _said(sentence)) is not None
    ]
    if not said:
        return _conclusion(sentences) if sentences else None
    values = [_after_colon(sentences, *each) for each in said]
    answers = {_readable(value) for value, _ in values}
    rest = sentences[said[-1][0] + 1 + values[-1][1] :]
    is_taken_back = any(
        _TAKEN_BACK.search(each) or re.search(r"\d", each) or readings(each) for each in rest
    )
    return answers.pop() if len(answers) == 1 and not is_taken_back else None


def _said(sentence: str) -> str | None:
    """Return what a sentence says that the answer is: "" if it cannot be relied on."""
    match = _MARKED.fullmatch(sentence)
    if match is not None:
        return match["value"] or match["other"]
    match = _ANSWER.fullmatch(sentence)
    if match is None:
        return None
    return "" if sentence.endswith("?") else str(match["value"])


def _after_colon(sentences: Sequence[str], place: int, value: str) -> tuple[str, int]:
    """Return the value, which may be a paragraph of its own, and how many more sentences it
    takes."""
    if value.strip() or sentences[place].endswith("?") or place + 1 >= len(sentences):
        return value, 0
    return sentences[place + 1], 1


def _readable(value: str) -> str | None:
    """Return a value if it is mathematics or a short name, without its full stop."""
    value = _CLAUSE.sub("", value.strip()).strip().rstrip(".。 ").strip()
    flat = words.flat(value)
    if not value or value.endswith("?") or (_DOUBT.search(flat) and not _is_plain(value)):
        return None
    is_name = len(flat.split()) <= _NAME_WORDS and re.search(r"[^\W\d_]{2}", flat)
    return value if readings(value) or is_name else None


def _is_plain(value: str) -> bool:
    """Return whether words that could deny are part of the mathematics, as in "2 or 3", or all of
    the answer, as in "No"."""
    no = {"no", "not possible", "neither", "false", "no solution"}
    return bool(readings(value)) or words.flat(value).casefold() in no


def _conclusion(sentences: Sequence[str]) -> str | None:
    last = sentences[-1].splitlines()[-1].strip() if "\n" in sentences[-1] else sentences[-1]
    if last.endswith("?"):
        return None
    match = _CONCLUSION.fullmatch(last)
    if match is not None:
        rest = match["rest"].strip()
        if _DOUBT.search(words.flat(rest)):
            return None
        verb = _VERB.fullmatch(rest)
        for value in filter(None, (verb and verb["value"], rest)):
            if readings(value.strip().rstrip(". ")):
                return _readable(value)
        return None
    if (labelled := _LABELLED.fullmatch(last)) is not None:
        return _readable(labelled["value"])
    before = sentences[-1][: -len(last)].strip() or (sentences[-2] if len(sentences) > 1 else "")
    if _DOUBT.search(words.flat(before)) or before.endswith("?"):
        return None
    return _readable(last) if readings(last.rstrip(". ")) else None
