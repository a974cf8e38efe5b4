"""The samples of a result folder, graded.

# P problems, n samples of each
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from ..common.network import not_found
from ..common.progress import Progress
from ..grading import Verdict, grade
from ..grading.decimals import with_points
from ..runs import eval_folder
from ..runs.eval_folder import SAMPLES, read_benchmark, read_problems, read_samples
from .metrics import pass_at_k

# as printed
PAPER = json.loads(resources.files(__package__).joinpath("paper.json").read_text(encoding="utf-8"))
NO_ANSWER = -1
_RIGHT = 0  # all right answers to a problem are one answer


@dataclass(frozen=True)
class Graded:
    """The graded samples of one benchmark, with `benchmark.json` as `about`, and warnings for a
    reader of its scores.

    A sample that was not judged is not correct; a problem none of whose samples was judged is left
    out. Answers are equal numbers where they are equal, and NO_ANSWER where there is none.
    `no_answer` counts the samples that were judged and hold no answer, `not_judged` the others by
    their reason. In `lenient_PN` an answer in mathematics may also stand in the text without a box.
    """

    name: str
    about: Mapping[str, Any]
    problems: Sequence[Mapping[str, Any]]
    correct_PN: np.ndarray
    lenient_PN: np.ndarray
    answers_PN: np.ndarray
    tokens_PN: np.ndarray
    truncated_PN: np.ndarray
    no_answer: int
    not_judged: Mapping[str, int]
    warnings: Sequence[str]

    @property
    def num_samples(self) -> int:
        return self.correct_PN.shape[1]

    def pass_at(self, k: int) -> np.ndarray:
        """Return (P,) Pass@k from all samples."""
        return pass_at_k(self.num_samples, self.correct_PN.sum(1), k)


def read_graded(folder: Path) -> list[Graded]:
    """Read and grade the output of `trl-miner eval`: its benchmarks in the paper's order, then by
    name."""
    title_of = {
        path: read_benchmark(path)["title"] for path in eval_folder.benchmark_folders(folder)
    }
    if not title_of:
        raise FileNotFoundError(
            f"No evaluation results in {folder}. Give a folder that `trl-miner eval` wrote."
            if folder.exists()
            else not_found("Folder", folder)
        )
    order = {title: place for place, title in enumerate(PAPER["k"])}
    paths = sorted(title_of, key=lambda path: (order.get(title_of[path], len(order)), path.name))
    chosen = [_read_benchmark(path) for path in paths]  # all errors come before any grading
    total = sum(len(pairs) for _, pairs, _ in chosen)
    with Progress(f"grading {folder}", total, unit="samples") as progress:
        return [
            _grade_benchmark(path.name, *one, progress)
            for path, one in zip(paths, chosen, strict=True)
        ]


Pair = tuple[dict[str, Any], dict[str, Any]]  # of a problem and a sample


def _read_benchmark(path: Path) -> tuple[dict[str, Any], list[Pair], list[str]]:
    """Return `benchmark.json`, equally many samples of each problem, and warnings."""
    about, problems = read_benchmark(path), read_problems(path)
    samples, warnings = read_samples(path / SAMPLES) if (path / SAMPLES).is_file() else ({}, [])
    asked = about["samples"]
    if strangers := {problem for problem, _ in samples} - {problem["id"] for problem in problems}:
        raise ValueError(
            f"{path / SAMPLES} has a sample of {strangers.pop()!r}, which is not in problems.jsonl."
        )
    total = asked * len(problems)
    # not by its keys: a stranger's file may ask for any number
    if missing := total - sum(number < asked for _, number in samples):
        raise ValueError(
            f"{path} must hold {asked} samples of each of its {len(problems)} problems: {missing}"
            f" of {total} are missing. The same `trl-miner eval` command samples them."
            f" {' '.join(warnings)}".strip()
        )
    pairs = [
        (problem, samples[problem["id"], number]) for problem in problems for number in range(asked)
    ]
    if about.get("decimal_comma"):
        pairs = [(each, own | {"text": with_points(own["text"])}) for each, own in pairs]
    return about, pairs, warnings


def _grade_benchmark(
    name: str,
    about: Mapping[str, Any],
    pairs: Sequence[Pair],
    warnings: Sequence[str],
    progress: Progress,
) -> Graded:
    grader = about["grader"]
    verdicts = grade(
        grader,
        [sample["text"] for _, sample in pairs],
        [problem.get("task" if grader == "task" else "solution") or "" for problem, _ in pairs],
        options=(
            [problem.get("options") or () for problem, _ in pairs] if grader == "choice" else None
        ),
        votes=True,
        advance=progress.update,
    )
    is_right = np.array([verdict.is_correct is True for verdict in verdicts])
    is_judged = np.array([verdict.is_correct is not None for verdict in verdicts])
    answers = _answer_ids([str(problem["id"]) for problem, _ in pairs], verdicts)
    size = about["samples"]
    kept = np.array([part.any() for part in is_judged.reshape(-1, size)])
    no_answer = int((is_judged & (answers == NO_ANSWER)).sum())
    not_judged = Counter(str(verdict.reason) for verdict in verdicts if verdict.is_correct is None)
    warnings = list(warnings)
    if not_judged:
        reasons = ", ".join(f"{count} ({reason})" for reason, count in sorted(not_judged.items()))
        warnings.append(
            f"{not_judged.total()} of {len(pairs)} samples were not judged: {reasons}."
            f" {(~kept).sum()} of {len(kept)} problems without any that was are left out; of the"
            " others, they count as wrong." + ("" if kept.any() else " There is no score: n/a.")
        )
    if no_answer == len(pairs):
        warnings.append(
            "No sample holds an answer in the form that the prompt asks for: every score is 0."
        )

    def rows(values: Any) -> np.ndarray:
        """Return values of all samples as (P, n), without the problems that are left out."""
        return np.asarray(values).reshape(-1, size)[kept]

    return Graded(
        name=name,
        about=about,
        problems=[
            problem for (problem, _), is_kept in zip(pairs[::size], kept, strict=True) if is_kept
        ],
        correct_PN=rows(is_right),
        lenient_PN=rows(_lenient(pairs, is_right) if grader == "math" else is_right),
        answers_PN=rows(answers),
        tokens_PN=rows([sample["tokens"] for _, sample in pairs]),
        truncated_PN=rows([sample["truncated"] for _, sample in pairs]),
        no_answer=no_answer,
        not_judged=dict(sorted(not_judged.items())),
        warnings=warnings,
    )


def _lenient(pairs: Sequence[Pair], is_right: np.ndarray) -> np.ndarray:
    """Return whether each sample in mathematics is right where an answer without a box counts
    too."""
    without = [place for place, (_, sample) in enumerate(pairs) if "\\boxed" not in sample["text"]]
    texts, golds = (
        [pairs[place][part][key] for place in without]
        for part, key in ((1, "text"), (0, "solution"))
    )
    lenient = is_right.copy()
    lenient[without] = [
        verdict.is_correct is True for verdict in grade("math", texts, golds, unboxed=True)
    ]
    return lenient


def _answer_ids(problems: Sequence[str], verdicts: Sequence[Verdict]) -> np.ndarray:
    """Return numbers that are equal where two answers to one problem are."""
    seen: dict[tuple[str, str], int] = {}
    ids = []
    for problem, verdict in zip(problems, verdicts, strict=True):
        if verdict.is_correct:
            ids.append(_RIGHT)
        elif verdict.answer is None:
            ids.append(NO_ANSWER)
        else:
            ids.append(seen.setdefault((problem, verdict.answer), len(seen) + _RIGHT + 1))
    return np.array(ids)
