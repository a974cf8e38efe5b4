"""Guess what the columns of a data set hold, and which verifier accepts its answers."""

from collections.abc import Mapping, Sequence
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
    found = dict(given)
    if "dataset_prompt_column" not in found:
        hint = "Name it with --dataset_prompt_column COLUMN"
        found["dataset_prompt_column"] = find_column("question", QUESTIONS, columns, name, hint)
    others = [column for column in columns if column != found["dataset_prompt_column"]]
    if "dataset_solution_column" not in found:
        hint = "Name it with --dataset_solution_column COLUMN"
        found["dataset_solution_column"] = find_column("answer", ANSWERS, others, name, hint)
    if options := [column for column in others if column.lower() in OPTIONS]:
        found.setdefault("dataset_options_column", options[0])
    golds = [c.text(row.get(found["dataset_solution_column"])) for row in rows]
    if golds and all("####" in gold for gold in golds):
        found.setdefault("answer_pattern", MARKED)
    if "reward_funcs" not in found:
        found["reward_funcs"] = ["choice_reward" if "dataset_options_column" in found else "math_reward"]
        _check_verifier(rows, found)
    return found


def find_column(what: str, usual: Sequence[str], columns: Sequence[str], name: str, hint: str) -> str:
    """Return the column with the surest name; one that is alone needs none.

    Args:
        what: What the column holds, for the error.
        usual: Names for it, the surest first.
        columns: Those there are.
        name: Of the data set, for the error.
        hint: The error's last sentence, without its full stop.
    """
    by_name = {column.lower().strip(): column for column in reversed(columns)}
    for candidate in usual:
        if candidate in by_name:
            return by_name[candidate]
    if len(columns) == 1:
        return columns[0]
    raise ValueError(
        f"No column of {name} looks like the {what}: there are {', '.join(columns) or 'no others'}. {hint}."
    )


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
