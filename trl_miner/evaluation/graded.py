"""The samples of a result folder, graded.

# P problems, n samples of each
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..grading import Verdict, grade
from ..progress import Progress
from ..runs import eval_folder
from ..runs.eval_folder import SAMPLES, read_benchmark, read_problems, read_samples
from .metrics import pass_at_k
from .paper import load_paper

NO_ANSWER = -1
_RIGHT = 0  # all right answers to a problem are one answer


@dataclass(frozen=True)
class Graded:
    """The graded samples of one benchmark, with `benchmark.json` as `about`, and warnings for a reader of its scores.

    A sample that was not judged is not correct; a problem none of whose samples was judged is left out. Answers are
    equal numbers where they are equal, and NO_ANSWER where there is none. `no_answer` counts the samples that were
    judged and hold no answer, `not_judged` the others by their reason. In `lenient_PN` an answer in
    mathematics may also stand in the text without a box.
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
    def is_scored(self) -> bool:
        """Whether any sample was judged."""
        return bool(self.problems)

    @property
    def num_samples(self) -> int:
        return self.correct_PN.shape[1]

    def pass_at(self, k: int) -> np.ndarray:
        """Return (P,) Pass@k from all samples."""
        return pass_at_k(self.num_samples, self.correct_PN.sum(1), k)


def benchmark_folders(folder: Path) -> list[Path]:
    """Return the benchmarks of a result folder, in the paper's order and then by name."""
    title_of = {path: read_benchmark(path)["title"] for path in eval_folder.benchmark_folders(folder)}
    if not title_of:
        raise FileNotFoundError(
            f"{folder} must hold a folder with a benchmark.json per benchmark: found none. Give the --output of "
            f"`trl-miner eval`."
        )
    order = {title: place for place, title in enumerate(load_paper()["k"])}
    return sorted(title_of, key=lambda path: (order.get(title_of[path], len(order)), path.name))


def read_graded(folder: Path, *, k: int | None) -> list[Graded]:
    """Read and grade a result folder, one entry per benchmark.

    Args:
        folder: The output of `trl-miner eval`.
        k: The largest k that will be asked for; None: whatever there is.
    """
    paths = benchmark_folders(folder)
    chosen = [_read_benchmark(path, k) for path in paths]  # all errors come before any grading
    total = sum(len(several) for _, _, samples, _ in chosen for several in samples)
    with Progress(f"grading {folder}", total, unit="samples") as progress:
        return [_grade_benchmark(path.name, *one, progress) for path, one in zip(paths, chosen, strict=True)]


def _read_benchmark(
    path: Path, k: int | None
) -> tuple[dict[str, Any], list[dict[str, Any]], list[list[dict[str, Any]]], list[str]]:
    """Return `benchmark.json`, the problems, equally many samples of each, and warnings."""
    about, problems = read_benchmark(path), read_problems(path)
    by_key, warnings = read_samples(path / SAMPLES) if (path / SAMPLES).is_file() else ({}, [])
    ids, asked = [problem["id"] for problem in problems], about["samples"]
    if strangers := {problem for problem, _ in by_key} - {*ids}:
        raise ValueError(
            f"{path / SAMPLES} must hold samples of problems.jsonl: got one of {strangers.pop()!r}. Sample into a new "
            f"folder."
        )
    keys = [(name, number) for name in ids for number in range(asked)]
    if missing := sum(key not in by_key for key in keys):
        raise ValueError(
            f"{path} must hold {asked} samples of each of its {len(ids)} problems: {missing} of {len(keys)} are "
            f"missing. The same `trl-miner eval` command samples them. {' '.join(warnings)}".strip()
        )
    if k is not None and not 1 <= k <= asked:
        raise ValueError(
            f"k must be between 1 and the samples per problem: got k={k} for {asked} samples in {path}. Sample more, "
            f"or ask for a smaller k."
        )
    return about, problems, [[by_key[name, number] for number in range(asked)] for name in ids], warnings


def _grade_benchmark(
    name: str,
    about: Mapping[str, Any],
    problems: Sequence[Mapping[str, Any]],
    samples: Sequence[Sequence[Mapping[str, Any]]],
    warnings: Sequence[str],
    progress: Progress,
) -> Graded:
    pairs = [(problem, sample) for problem, several in zip(problems, samples, strict=True) for sample in several]
    verdicts = grade(
        about["grader"],
        [sample["text"] for _, sample in pairs],
        [problem["task" if about["grader"] == "task" else "solution"] for problem, _ in pairs],
        options=[problem.get("options") or () for problem, _ in pairs] if about["grader"] == "choice" else None,
        votes=True,
        advance=progress.advance,
    )
    shape = (len(problems), len(samples[0]))
    ids = _answer_ids([str(problem["id"]) for problem, _ in pairs], verdicts)
    is_judged = np.array([verdict.is_correct is not None for verdict in verdicts])
    kept = np.flatnonzero(is_judged.reshape(shape).any(axis=1)).tolist()
    no_answer = int((is_judged & (ids == NO_ANSWER)).sum())
    not_judged = Counter(str(verdict.reason) for verdict in verdicts if verdict.is_correct is None)
    warnings = list(warnings)
    if not_judged:
        reasons = ", ".join(f"{count} ({reason})" for reason, count in sorted(not_judged.items()))
        warnings.append(
            f"{not_judged.total()} of {len(pairs)} samples were not judged: {reasons}. "
            f"{len(problems) - len(kept)} of {len(problems)} problems without any that was are left out; of the "
            f"others, they count as wrong." + ("" if kept else " There is no score: n/a.")
        )
    if no_answer == len(pairs):
        warnings.append("No sample holds an answer in the form that the prompt asks for: every score is 0.")
    return Graded(
        name=name,
        about=about,
        problems=[problems[place] for place in kept],
        correct_PN=np.array([verdict.is_correct is True for verdict in verdicts]).reshape(shape)[kept],
        lenient_PN=_lenient(about["grader"], pairs, verdicts).reshape(shape)[kept],
        answers_PN=ids.reshape(shape)[kept],
        tokens_PN=np.array([sample["tokens"] for _, sample in pairs]).reshape(shape)[kept],
        truncated_PN=np.array([bool(sample["truncated"]) for _, sample in pairs]).reshape(shape)[kept],
        no_answer=no_answer,
        not_judged=dict(sorted(not_judged.items())),
        warnings=warnings,
    )


def _lenient(
    grader: str, pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], verdicts: Sequence[Verdict]
) -> np.ndarray:
    """Return whether each sample is right where, in mathematics, an answer without a box counts too."""
    is_right = np.array([verdict.is_correct is True for verdict in verdicts])
    if grader != "math":
        return is_right
    without = [place for place, (_, sample) in enumerate(pairs) if "\\boxed" not in sample["text"]]
    texts, golds = ([pairs[place][part][key] for place in without] for part, key in ((1, "text"), (0, "solution")))
    is_right[without] = [verdict.is_correct is True for verdict in grade("math", texts, golds, unboxed=True)]
    return is_right


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
