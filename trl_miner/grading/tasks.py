r"""How an answer to a problem of reasoning-gym is found in a text, and scored by the scorer of its
family.

A problem travels as text, JSON: `family`, its `config`, `seed`, `index` and `question`. Whoever
wrote that text may be a stranger, and some families evaluate what a problem says of itself. So
its answer and its metadata are never read from there: the family makes the problem again, and its
question must be the one that is given.

The answer is what stands between the last `<answer>` and `</answer>`, as in reasoning-gym; without
them the last `\boxed{}`; without either the last line, which scores nothing unless it is right:
otherwise reasoning that merely mentions the right number would earn a part of the score.

Scorers of some families evaluate the answer as Python. Here a formula reaches them only if it
cannot call anything but mathematical functions, and a list only as a literal. All of this runs in
the processes of `pool.py`.
"""

import ast
import copy
import dataclasses
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from . import math_answers

SIZE = 500  # problems that a family makes for one seed
OPEN, CLOSE = "<answer>", "</answer>"
# Their scorers evaluate a formula with sympy, which knows every function of Python by its name.
_FORMULAS = """
    countdown puzzle24 simple_integration intermediate_integration polynomial_multiplication
    """.split()
_FUNCTIONS = {
    *"sin cos tan sec csc cot sinh cosh tanh asin acos atan exp ln log sqrt pi abs Abs".split()
}
_WORD = re.compile(r"[^\W\d]\w*")
_ATTRIBUTE = re.compile(r"\.\s*[^\W\d]")
_FORMULA = re.compile(r"(?:[^\W_]|[\s()+*/^,.=-])*")
# Their scorers evaluate a list.
_LISTS = "binary_matrix n_queens number_sorting spiral_matrix string_insertion".split()
# A text in a family's settings: a word or an operator. Families make formulas of them, which they
# evaluate, and read the file of that name.
_SETTING = re.compile(r"\w{1,64}|[^\w()\[\]{}'\"]{1,2}")
_MAX_SETTINGS = 1000
_MAX_NUMBER = 10**12
_MAX_DEPTH = 4


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


def to_text(family: str, config: Mapping[str, Any], seed: int, index: int, question: str) -> str:
    """Return a problem as text, for the column `task`."""
    fields = {"family": family, "config": config, "seed": seed, "index": index}
    return json.dumps({**fields, "question": question})


def make_family(name: str, config: Mapping[str, Any], seed: int) -> Any:
    """Return the `SIZE` problems that a family makes with these settings and this seed.

    Raises:
        ValueError: A setting is neither a word, an operator nor a number of a usual size, or the
            settings are many.
        Exception: Families raise anything for settings that they do not take.
    """
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    if name in DATASETS:
        usual = {*_leaves(dataclasses.asdict(DATASETS[name][1]()))}
        for number, value in enumerate(_leaves(config)):
            if number >= _MAX_SETTINGS:
                raise ValueError(f"there are more than {_MAX_SETTINGS} values")
            if value not in usual and not _is_plain(value):
                raise ValueError(
                    f"a value must be a word, an operator or a number up to {_MAX_NUMBER:.0e}: got"
                    f" {value!a:.80}"
                )
    family = reasoning_gym.create_dataset(name, size=SIZE, seed=seed, **config)
    if name in _LISTS:
        # the name in the scorer's module hides Python's own
        vars(sys.modules[type(family).__module__])["eval"] = ast.literal_eval
    return family


def _leaves(value: Any, depth: int = 0) -> Iterator[Any]:
    """Yield what settings hold, with the names in them."""
    if depth > _MAX_DEPTH:
        raise ValueError(f"values stand more than {_MAX_DEPTH} levels deep")
    if isinstance(value, Mapping):
        value = [*value, *value.values()]
    if isinstance(value, list | tuple):
        for inner in value:
            yield from _leaves(inner, depth + 1)
    else:
        yield value


def _is_plain(value: Any) -> bool:
    """Return whether a setting cannot be code, a path, or work without an end."""
    if isinstance(value, str):
        return bool(_SETTING.fullmatch(value))
    if isinstance(value, int | float):
        return math.isfinite(value) and abs(value) <= _MAX_NUMBER
    return value is None


def load(task: str) -> tuple[Any, dict[str, Any]]:
    """Return the family of a problem and the problem, made again, from this process's cache if
    they are there.

    Raises:
        ValueError: The family does not make this question: the text is no task, or was changed, or
            reasoning-gym is of another version.
        Exception: As in `make_family`.
    """
    family, entry = _load(task)
    return family, copy.deepcopy(entry)  # a scorer may change it


@lru_cache(maxsize=256)
def _load(task: str) -> tuple[Any, dict[str, Any]]:
    stored = json.loads(task)
    family = _load_family(stored["family"], json.dumps(stored["config"]), int(stored["seed"]))
    index = int(stored["index"])
    entry = family[index] if 0 <= index < SIZE else {}
    if entry.get("question") != stored["question"]:
        raise ValueError(f"{stored['family']} does not make this question")
    return family, entry


@lru_cache(maxsize=32)
def _load_family(name: str, config: str, seed: int) -> Any:
    return make_family(name, json.loads(config), seed)


def score(task: str, answer: str) -> tuple[float, str]:
    """Return the family's score of an answer, 0 for one that its scorer cannot read, and the
    problem's own answer.

    There is no time limit. Raises what `load` does.
    """
    family, entry = load(task)
    expected = str(entry["answer"])
    if json.loads(task)["family"] in _FORMULAS and not _is_formula(answer):
        return 0.0, expected
    try:
        return min(1.0, max(0.0, float(family.score_answer(answer, entry)))), expected
    except Exception:  # scorers raise anything for a text that is not in the form of an answer
        return 0.0, expected


def _is_formula(answer: str) -> bool:
    """Return whether a text names nothing but variables of one letter and mathematical
    functions."""
    words = _WORD.findall(answer)
    is_plain = _FORMULA.fullmatch(answer) and not _ATTRIBUTE.search(answer)
    return bool(is_plain) and all(len(word) == 1 or word in _FUNCTIONS for word in words)
