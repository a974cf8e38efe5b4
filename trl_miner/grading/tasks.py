r"""How an answer to a problem of reasoning-gym is found in a text, and scored by the scorer of its
family.

A problem travels as text, the literal of a dictionary: `family`, its `config`, `question`, `answer`
and `metadata`. (A literal keeps what JSON loses: tuples, and numbers as keys.) The scorer's score
is from 0 to 1; 1 is right.

The answer is what stands between the last `<answer>` and `</answer>`, as in reasoning-gym; without
them the last `\boxed{}`; without either the last line, which scores nothing unless it is right:
otherwise reasoning that merely mentions the right number would earn a part of the score.

Scorers of some families evaluate the answer as Python. Here an answer reaches them only if it
cannot call anything but mathematical functions, and all of this runs in the processes of `pool.py`.
"""

import ast
import json
import re
from functools import cache
from typing import Any

from . import math_answers

OPEN, CLOSE = "<answer>", "</answer>"
# Their scorers evaluate a formula with sympy, which knows every function of Python by its name.
_FORMULAS = (
    "countdown",
    "puzzle24",
    "simple_integration",
    "intermediate_integration",
    "polynomial_multiplication",
)
_FUNCTIONS = {
    *"sin cos tan sec csc cot sinh cosh tanh asin acos atan exp ln log sqrt pi abs Abs".split()
}
_WORD = re.compile(r"[^\W\d]\w*")
_ATTRIBUTE = re.compile(r"\.\s*[^\W\d]")
_FORMULA = re.compile(r"(?:[^\W_]|[\s()+*/^,.=-])*")
# Their scorers evaluate a list.
_LISTS = ("binary_matrix", "n_queens", "spiral_matrix", "string_insertion")


def find_answer(text: str) -> tuple[str | None, bool]:
    """Return the answer in a text, None if there is none, and whether it is marked as one."""
    end = text.rfind(CLOSE)
    start = text.rfind(OPEN, 0, end) if end >= 0 else -1
    boxes = math_answers.boxes(text) if start < 0 else ()
    if start >= 0:
        answer, is_marked = text[start + len(OPEN) : end], True
    elif boxes:
        answer, is_marked = boxes[0], True
    else:
        answer, is_marked = text.rstrip().rpartition("\n")[2], False
    answer = answer.strip()
    return (answer if 0 < len(answer) <= math_answers.MAX_CHARACTERS else None), is_marked


def own_answer(task: str) -> str:
    """Return the answer that a problem gives itself."""
    return str(ast.literal_eval(task)["answer"])


def load(task: str) -> Any:
    """Return a problem's family, ready to score, from this process's cache if it is there."""
    entry = ast.literal_eval(task)
    return _load_family(entry["family"], json.dumps(entry["config"], sort_keys=True))


@cache
def _load_family(name: str, config: str) -> Any:
    import reasoning_gym

    return reasoning_gym.create_dataset(name, size=1, seed=0, **json.loads(config))


def score(task: str, answer: str) -> float:
    """Return the family's score of an answer; 0 for one that its scorer cannot read. There is no
    time limit."""
    entry = ast.literal_eval(task)
    name = entry["family"]
    if (name in _FORMULAS and not _is_formula(answer)) or (name in _LISTS and "(" in answer):
        return 0.0
    scorer = load(task)
    try:
        return min(1.0, max(0.0, float(scorer.score_answer(answer, entry))))
    except Exception:  # scorers raise anything for a text that is not in the form of an answer
        return 0.0


def _is_formula(answer: str) -> bool:
    """Return whether a text names nothing but variables of one letter and mathematical
    functions."""
    words = _WORD.findall(answer)
    is_plain = _FORMULA.fullmatch(answer) and not _ATTRIBUTE.search(answer)
    return bool(is_plain) and all(len(word) == 1 or word in _FUNCTIONS for word in words)
