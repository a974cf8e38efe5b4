"""Guess the settings of your own data set from its columns and first rows: `trl-miner train data.csv`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import columns as c
from .own import GOLDS, Layout, check_first_golds

# What columns are usually called, the surest name first. Compared in lower case.
QUESTIONS = ("question", "problem", "prompt", "query", "instruction", "input", "task", "text", "q")
ANSWERS = ("answer", "solution", "gold", "final_answer", "expected_answer", "correct_answer", "expected", "ground_truth")
ANSWERS += ("target", "label", "result", "output", "response", "a")
OPTIONS = ("options", "choices")
MARKED = r"####\s*(.+)"  # the answer at the end of a worked solution, as in GSM8K


@dataclass(frozen=True)
class Guess:
    """Settings of a recipe for a data set, and what they rest on."""

    settings: dict[str, Any] = field(default_factory=dict)
    said: str = ""  # which column is what, in a sentence


def guess_settings(name: str, names: Sequence[str], rows: Sequence[Mapping[str, Any]], known: Mapping[str, Any]) -> Guess:
    """Return the settings that a data set needs in a recipe.

    Args:
        name: What the data set is called, for errors.
        names: Its columns.
        rows: Its first rows.
        known: Settings that the user has given; they are not guessed.

    Raises:
        ValueError: No column looks like the question or like the answer, or no verifier accepts the answers.
    """
    question = known.get("dataset_prompt_column") or _find("question", "dataset_prompt_column", QUESTIONS, names, name)
    others = [column for column in names if column != question]
    answer = known.get("dataset_solution_column") or _find("answer", "dataset_solution_column", ANSWERS, others, name)
    options = known.get("dataset_options_column") or next((o for o in others if o.lower() in OPTIONS), None)
    settings = {"dataset_prompt_column": question, "dataset_solution_column": answer}
    if options:
        settings["dataset_options_column"] = options
    golds = [c.text(row.get(answer)) for row in rows]
    pattern = known.get("answer_pattern")
    if pattern is None and golds and all("####" in gold for gold in golds):
        pattern = settings["answer_pattern"] = MARKED
    reward = "choice_reward" if options else "math_reward"
    if not known.get("reward_funcs"):
        settings["reward_funcs"] = [reward]
        _check(reward, answer, rows, Layout(question, answer, options or "options", pattern))
    marked = f" after {pattern!r}" if pattern else ""
    said = f"{name}: questions in the column {question}, answers in {answer}{marked}"
    said += f", options in {options}" if options else ""
    verifiers = known.get("reward_funcs") or reward
    return Guess(settings, f"{said}; {verifiers if isinstance(verifiers, str) else ', '.join(verifiers)} verifies them.")


def _find(what: str, setting: str, usual: Sequence[str], names: Sequence[str], name: str) -> str:
    """Return the column with the surest name; a column alone needs no name."""
    by_name = {column.lower().strip(): column for column in reversed(names)}
    for candidate in usual:
        if candidate in by_name:
            return by_name[candidate]
    if len(names) == 1:
        return names[0]
    raise ValueError(
        f"No column of {name} looks like the {what}: there are {', '.join(names) or 'none'}. Name it: --{setting} COLUMN."
    )


def _check(reward: str, answer: str, rows: Sequence[Mapping[str, Any]], layout: Layout) -> None:
    """Raise where the verifier rejects most of the first answers."""
    from .own import arrange_row

    arranged = [arrange_row(dict(row), place, layout) for place, row in enumerate(rows[:GOLDS])]
    check = check_first_golds(reward, arranged, [reward])
    if check.is_bad:
        raise ValueError(
            f"The answers in {answer} are not such that {reward} could verify them. {check.rejected} Or name a reward "
            "function of your own: --reward_funcs my_module.my_reward."
        )
