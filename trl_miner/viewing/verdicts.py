"""What our verifier, math-verify and the recorded reward say of the same answers."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.progress import Progress, track
from ..common.tables import Table
from ..common.text import one_line
from ..data.columns import field
from ..data.guessing import guess_columns
from ..data.reading import read_file
from ..grading import grade
from ..grading.math_answers import boxes
from ..grading.references import describe_reference
from .prompt_outcomes import THRESHOLD, OutcomeCollector
from .rollout_lines import gold_text, message_text
from .rollouts import find_rollouts, is_rollout_file

if TYPE_CHECKING:
    from pandas import DataFrame

RESPONSES = "completion response output generation prediction model_output pred".split()
REWARDS = "reward score correct is_correct acc accuracy".split()
_TAIL = 160  # characters of an answer that are shown
_WORDS = {1.0: "right", 0.0: "wrong"}


@dataclass(frozen=True)
class Verdicts:
    """Answers with their verdicts, those on which they differ most first.

    Attributes:
        table: A row each: "prompt", "completion", "gold", "recorded", "ours", "math-verify" (1
            right, 0 wrong, NaN not judged), "boxed".
        notes: Sentences on how the file was read.
    """

    table: "DataFrame"
    notes: Sequence[str]

    def differ(self, one: str, other: str) -> "DataFrame":
        """Return the answers that one calls right and the other wrong."""
        return self.table[(self.table[one] == 1) & (self.table[other] == 0)]

    def sentences(self) -> list[str]:
        """Return the counts, the gravest disagreement first."""
        names = {
            "recorded": "the recorded reward",
            "ours": "trl-miner",
            "math-verify": "math-verify",
        }
        pairs = (
            ("ours", "recorded"),
            ("recorded", "ours"),
            ("ours", "math-verify"),
            ("math-verify", "ours"),
        )
        counts = {pair: len(self.differ(*pair)) for pair in pairs}
        said = [
            f"Right for {names[one]}, wrong for {names[other]}: {number:,} of {len(self.table):,}."
            for (one, other), number in counts.items()
            if number
        ]
        if unboxed := int((~self.table["boxed"]).sum()):
            said.append(
                f"Without \\boxed{{}}: {unboxed:,}. They were read here; math_reward does so only with"
                " math_accept_unboxed."
            )
        return said if any(counts.values()) else ["All verdicts agree.", *said]

    def shown(self, limit: int) -> Table:
        """Return the first answers as a table."""
        names = ("recorded", "ours", "math-verify")
        rows = [
            [_end(row["completion"]), one_line(row["gold"], 60), _read(row["gold"]),
             *(_WORDS.get(row[name], "not judged") for name in names)]
            for row in self.table.head(limit).to_dict("records")
        ]  # fmt: skip
        header = ["End of the answer", "Gold", "Read as", "Recorded", "trl-miner", "math-verify"]
        return Table("Answers, disagreements first", header, rows, is_text=True)


def verify_file(
    path: str | Path,
    columns: Mapping[str, str | None] | None = None,
    *,
    threshold: float = THRESHOLD,
    samples: int = 1000,
) -> Verdicts:
    """Grade answers of a file again.

    Args:
        path: Rollouts in a form that `rollouts` knows, or a CSV, JSON or Parquet file with columns
            of answers and golds.
        columns: The columns "completion", "gold" and "reward" of such a file; None: found by name.
        threshold: The recorded reward from which on an answer is right.
        samples: At most so many answers, by chance.

    Raises:
        ValueError: The file cannot be read, or has no reference answers.
    """
    path, notes = Path(path), []
    if any((columns or {}).values()) or not (path.is_dir() or is_rollout_file(path)):
        table, said = _of_columns(path, columns or {}, threshold)
        notes += said
    else:
        table = _of_rollouts(path, threshold)
    if len(table) > samples:
        notes.append(f"{samples:,} of {len(table):,} answers, by chance; --samples takes more.")
        table = table.sample(samples, random_state=0)
    table = _with_verdicts(table.reset_index(drop=True))
    names = ["recorded", "ours", "math-verify"]
    differ = table[names].max(axis=1) - table[names].min(axis=1)  # NaN does not count
    grave = (table["recorded"] - table["ours"]).abs().fillna(0)
    order = (2 * grave + differ.fillna(0)).sort_values(ascending=False, kind="stable").index
    return Verdicts(table.loc[order].reset_index(drop=True), notes)


def _of_rollouts(path: Path, threshold: float) -> "DataFrame":
    import pandas as pd

    files = find_rollouts(path)
    if files is None:
        raise ValueError(f"{path} holds no rollouts: give the folder of a run, or a file.")
    parts, collector = [], OutcomeCollector(threshold=threshold)
    for frame in files.frames(quiet=False):
        collector.add(frame)
        parts.append(frame[["prompt", "completion", "gold"]])
    table = pd.concat(parts, ignore_index=True)
    table["recorded"] = collector.outcomes().rollouts["correct"]
    if table["gold"].isna().all():
        raise ValueError(
            f"{path} has no reference answers. In a reward function of TRL, log_extra('solution', solution)"
            " writes them beside the completions; or give a file with a column of them."
        )
    return table[table["gold"].notna()]


def _of_columns(
    path: Path, given: Mapping[str, str | None], threshold: float
) -> tuple["DataFrame", list[str]]:
    import pandas as pd

    rows = read_file(path)
    names = [*dict.fromkeys(name for row in rows for name in row)]
    answer = given.get("completion") or _named(names, RESPONSES)
    if answer not in names:
        raise ValueError(
            f"No column of {path} looks like the model's answer: there are {', '.join(names)}. Name"
            " it with --completion COLUMN."
        )
    reward = given.get("reward") or _named([name for name in names if name != answer], REWARDS)
    others = [{k: v for k, v in row.items() if k not in (answer, reward)} for row in rows]
    gold = given.get("gold") or guess_columns(
        str(path), others, {"dataset_prompt_column": _named(names, ("prompt", "question", "problem"))},
        "Name it with --reference COLUMN",
    ).settings["dataset_solution_column"]  # fmt: skip
    table = pd.DataFrame(
        {
            "prompt": [message_text(row.get("prompt")) for row in rows],
            "completion": [message_text(row.get(answer)) for row in rows],
            "gold": [gold_text(_field(row, gold)) or "" for row in rows],
            "recorded": [_recorded(row.get(reward), threshold) for row in rows],
        }
    )
    named = f"recorded rewards in {reward}" if reward else "no recorded rewards"
    return table, [f"Answers are in the column {answer}, reference answers in {gold}, {named}."]


def _field(row: Mapping[str, Any], name: str) -> Any:
    """Return what a row has in a column or a field of one, such as reward_model.ground_truth."""
    try:
        return field({**row}, name)
    except KeyError:
        return None


def _named(names: Sequence[str], usual: Sequence[str]) -> str:
    lower = {name.lower(): name for name in reversed(names)}
    return next((lower[name] for name in usual if name in lower), "")


def _recorded(value: Any, threshold: float) -> float:
    words = {"true": 1.0, "false": 0.0, "right": 1.0, "wrong": 0.0}
    try:
        number = words.get(str(value).lower())
        return float(float(value) >= threshold) if number is None else number
    except (TypeError, ValueError):
        return float("nan")


def _with_verdicts(table: "DataFrame") -> "DataFrame":
    # it says so where a caller limits the time itself, as the pool does
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    texts, golds = table["completion"].tolist(), table["gold"].astype(str).tolist()
    with Progress("grading", len(texts), unit="answers") as progress:
        verdicts = grade("math", texts, golds, unboxed=True, advance=progress.update)
    ours = [
        None if verdict.is_correct is None else float(verdict.is_correct) for verdict in verdicts
    ]
    pairs = track([*zip(golds, texts, strict=True)], "math-verify", unit="answers")
    theirs = [_by_math_verify(gold, text) for gold, text in pairs]
    boxed = [bool(boxes(text)) for text in texts]
    found = table.assign(ours=ours, boxed=boxed, **{"math-verify": theirs})
    return found.astype(dict.fromkeys(("recorded", "ours", "math-verify"), float))


def _by_math_verify(gold: str, text: str) -> float | None:
    """Return the verdict of math-verify with its defaults; None: it cannot read the gold."""
    from math_verify import parse, verify

    expected = parse(f"\\boxed{{{gold}}}" if "\\" in gold and "boxed" not in gold else gold)
    return float(verify(expected, parse(text))) if expected else None


def _end(text: str) -> str:
    return one_line(text if len(text) <= _TAIL else f"…{text[-_TAIL:]}")


def _read(gold: str) -> str:
    try:
        reading = describe_reference(str(gold))
    except ValueError:
        return "a dictionary"
    return one_line(f"{reading.kind} {reading.value}".strip(), 40)
