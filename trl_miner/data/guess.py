"""Guess what the columns of a data set hold, and which verifier accepts its answers."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from . import columns as c
from .own import Layout, arrange, check_first_golds

# What columns are usually called, the surest name first; compared in lower case.
QUESTIONS = ("question", "problem", "prompt", "query", "instruction", "input", "task", "text", "q")
ANSWERS = (
    *("answer", "solution", "gold", "final_answer", "expected_answer", "correct_answer", "expected", "ground_truth"),
    *("target", "label", "result", "output", "response", "a"),
)
OPTIONS = ("options", "choices")
MARKED = r"####\s*(.+)"  # the answer at the end of a worked solution, as in GSM8K


def guess_settings(
    name: str, columns: Sequence[str], rows: Sequence[Mapping[str, Any]], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the settings of a recipe that say what a data set holds.

    Args:
        name: What the data set is called, for errors.
        columns: Its columns.
        rows: Its first rows.
        given: Settings of the user, which stay as they are.

    Raises:
        ValueError: No column looks like the question or like the answer, or no verifier accepts the answers.
    """
    found = dict(given) | guess_columns(name, columns, given, "Name it with --{setting} COLUMN")
    if is_marked(row.get(found["dataset_solution_column"]) for row in rows):
        found.setdefault("answer_pattern", MARKED)
    if "reward_funcs" not in found:
        found["reward_funcs"] = ["choice_reward" if "dataset_options_column" in found else "math_reward"]
        _check_verifier(rows, found)
    return found


def guess_columns(name: str, columns: Sequence[str], given: Mapping[str, Any], hint: str) -> dict[str, str]:
    """Return the settings that name the columns with questions, answers and, where there are some, options.

    Args:
        name: What the data set is called, for errors.
        columns: Its columns.
        given: Settings of the user, which stay as they are.
        hint: What an error says to do, with {setting} and {what} for what is missing.

    Raises:
        ValueError: No column looks like the question or like the answer.
    """
    found: dict[str, str] = {}
    for setting, what, usual in (
        ("dataset_prompt_column", "question", QUESTIONS),
        ("dataset_solution_column", "answer", ANSWERS),
    ):
        others = [column for column in columns if column not in found.values()]
        found[setting] = given.get(setting) or _find(usual, others)
        if not found[setting]:
            raise ValueError(
                f"No column of {name} looks like the {what}: there are {', '.join(others) or 'no others'}. "
                f"{hint.format(setting=setting, what=what)}."
            )
    options = [column for column in columns if column not in found.values() and column.lower() in OPTIONS]
    if options:
        found["dataset_options_column"] = given.get("dataset_options_column") or options[0]
    return found


def _find(usual: Sequence[str], columns: Sequence[str]) -> str:
    """Return the column with the surest name, or one that is alone; empty: there is none."""
    by_name = {column.lower().strip(): column for column in reversed(columns)}
    alone = columns[0] if len(columns) == 1 else ""
    return next((by_name[candidate] for candidate in usual if candidate in by_name), alone)


def is_marked(golds: Iterable[Any]) -> bool:
    """Return whether all of these, which are some, end with #### and the answer."""
    texts = [*map(c.text, golds)]
    return bool(texts) and all("####" in text for text in texts)


def _check_verifier(rows: Sequence[Mapping[str, Any]], found: Mapping[str, Any]) -> None:
    """Raise where the verifier rejects most of the first answers."""
    from datasets import Dataset

    rewards = found["reward_funcs"]
    layout = Layout(
        found["dataset_prompt_column"],
        found["dataset_solution_column"],
        found.get("dataset_options_column", "options"),
        found.get("answer_pattern"),
    )
    check = check_first_golds(rewards[0], arrange(Dataset.from_list([*map(dict, rows)]), layout, rewards), rewards)
    if check.is_bad:
        raise ValueError(
            f"{check.rejected} Or name a reward function that can verify such answers: --reward_funcs module.function."
        )
