r"""Where the answer stands in a text, and where in a reference.

Boxes first: every `\boxed{}` counts. A text without one has an answer only if it is asked for.
"""

import re

# A box is no answer if it is longer than both.
_MAX_BOX, _MAX_FACTOR = 500, 20  # characters; times the reference
_MAX_BOXES = 50
_MAX_CHARACTERS = 10_000  # of a box, and of a reference
_TAIL = 2_000  # characters in which a final answer without a box is looked for

_END_OF_THINKING = r"</(?:seed:)?think(?:ing)?>|\[/THINK\]|◁/think▷"
_THINKING = r"\s*(?:<(?:seed:)?think(?:ing)?>|\[THINK\]|◁think▷)"
_BOX = r"\\(?:boxed|fbox)\s*\{"
# What takes a number out of all bounds; no answer needs it, unless its reference does. Nothing limits the time
# of these patterns, so each of their repetitions is bounded.
_HUGE = (
    r"\^[^^\s+=]{0,9}\^[^^\s+=]{0,9}\^"  # 2^2^2^2
    r"|\^\s{0,9}\{?[^{}]{0,9}\d{5}"  # 2^{10000}
    r"|\d{5}\s{0,9}!|!\s{0,9}\)?\s{0,9}!"  # 10000!, 9!!
    r"|[-+]{60}|(?:[(\[{][^()\[\]{}]{0,9}){60}"  # signs, and brackets within brackets
)
# A text without a box: what says its answer, what ends it, and what takes it back.
_MARKUP = r"(?m)\*\*|__|`|^\s*#{1,3}\s+"
_SO = (
    r"(?:so|thus|therefore|hence|then|finally|and|now|consequently|in conclusion|conclusion|we get|this gives)\b"
    r"[,:]?\s+"
)
_SAID = (
    rf"(?i)(?:{_SO})*(?:the |my |our )?(?:final |correct |right )?(?:answer|solution|result)(?: to (?:the|this) \w+)?"
    r"\s*(?:is|are|:|=)\s*:?|#{3,4}|答案\s*(?:是|为|:|：)+"
)
_CONCLUDED = rf"(?i){_SO}(?:.{{0,60}}?(?:\bis\b|\bare\b|\bequals\b|\bget\b|=))?"
_REASON = r",?\s+(?:which|as|since|because|where)\s.*$"
_DOUBT = (
    r"(?i)\?|\b(?:not|no|never|cannot|maybe|perhaps|might|may|could|would|probably|possibly|likely|guess\w*|think|doubt\w*"
    r"|believe|assume|suppose|if|unless|or|but|however|except|instead|wrong|incorrect|false|mistake\w*|error|wait|actually"
    r"|hmm+|oops|sorry|correction|least|most|opposite|answer|really|kidding|another|check|let)\b|n't\b"
)


def after_thinking(text: str) -> str:
    """Return what follows the thinking of an output; thinking that is cut off has no answer.

    >>> after_thinking("<think>3?</think> It is 4.")
    ' It is 4.'
    """
    answer = re.split(_END_OF_THINKING, text)[-1]
    return "" if re.match(_THINKING, answer) else answer


def answers(text: str, unboxed: bool = False) -> tuple[str, ...]:
    r"""Return the distinct contents of the `\boxed{}` in a text, in order; of a text without one
    the final answer that it says, if that counts.

    None where a box is cut off. An empty box is a quote of the prompt, which asks for one.

    >>> answers(r"\\boxed{1} or \\boxed{\\frac{1}{2}}")
    ('1', '\\\\frac{1}{2}')
    """
    found: dict[str, int] = {}
    for match in re.finditer(_BOX, text):
        end = _closing_brace(text, match.end())
        if end is None or len(found) > _MAX_BOXES:
            return ()
        found[text[match.end() : end].strip()] = 1
    if unboxed and "\\boxed" not in text:
        found = found or {_final_answer(text): 1}
    return tuple(each for each in found if each)


def reference_content(reference: object) -> str:
    """Return the content of a reference's last box, or all of it; "" if no box could hold it."""
    text = "" if reference is None else str(reference).strip()
    is_whole = "\\boxed" not in text and _closing_brace(text + "}", 0) == len(text)
    return (text * is_whole, *answers(text))[-1]


def is_hostile(answer: str, reference: str) -> bool:
    """Return whether an answer is too long, too nested or too large to be one."""
    if len(answer) > max(_MAX_BOX, _MAX_FACTOR * len(reference)):
        return True
    return bool(re.search(_HUGE, answer) and not re.search(_HUGE, reference))


def _final_answer(text: str) -> str:
    """Return the final answer of a text without a box; "" where it says none, or doubts it.

    It stands in `<answer>`, behind "The answer is" or ####, or in a conclusion at the end.
    """
    text = text[-_TAIL:]
    if tagged := re.findall(r"(?s)<answer>(.*?)</answer>", text):
        return str(tagged[-1])
    sentences = re.split(r"(?<=[.!?。])\s+|\s*\n\s*", re.sub(_MARKUP, "", text).strip())
    is_said = any(re.match(_SAID, sentence) for sentence in sentences)
    pattern, start = (_SAID, 0) if is_said else (_CONCLUDED, len(sentences) - 1)
    values, rest = set(), ""
    for place, sentence in enumerate(sentences):
        if place >= start and (match := re.match(pattern, sentence)):
            is_apart = match.end() == len(sentence)
            values.add(
                _value(" ".join([sentence[match.end() :], *sentences[place + 1 :][:is_apart]]))
            )
            rest = " ".join(sentences[place + 1 + is_apart :])
    return values.pop() if len(values) == 1 and not re.search(rf"{_DOUBT}|\d", rest) else ""


def _value(text: str) -> str:
    """Return a value without its reason and marks; "" for one that is doubted."""
    value = re.sub(_REASON, "", text).strip("$ .。")
    words = re.sub(r"(?i)\d or \d|^(?:no|not possible|false)$", "", value)
    return "" if re.search(_DOUBT, words) else value


def _closing_brace(text: str, start: int) -> int | None:
    r"""Return the place of the brace that closes the one before `start`; `\{` does not count."""
    depth = 1
    for match in re.finditer(r"(?s)\\.|[{}]", text[start : start + _MAX_CHARACTERS]):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return start + match.start()
    return None
