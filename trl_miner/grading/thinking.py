"""Where the answer of a thinking model begins."""

import re

_END = re.compile(r"</(?:seed:)?think(?:ing)?>|\[/THINK\]|◁/think▷")
_START = re.compile(r"\s*(?:<(?:seed:)?think(?:ing)?>|\[THINK\]|◁think▷)")


def after_thinking(text: str) -> str:
    """Return what follows the thinking of an output: all of it where nobody thinks.

    The chat template may have opened the thinking, so that the text holds only its end. Thinking
    that was opened in the text and cut off has no answer.

    >>> after_thinking(r"<think>Is it \\boxed{3}? No.</think> It is \\boxed{4}.")
    ' It is \\\\boxed{4}.'
    """
    if end := [*_END.finditer(text)]:
        return text[end[-1].end() :]
    return "" if _START.match(text) else text
