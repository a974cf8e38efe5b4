"""The medical training set of arXiv 2601.04731: MedQA, and of MedMCQA the questions that a model does not answer.

The paper lets Llama-3.1-8B-Instruct answer all of MedMCQA's training questions by greedy decoding, and drops those
that it answers right. Here that takes three steps: `medmcqa_train_problems` reads the questions,
`evaluation.evaluate.sample_filter` draws a greedy answer to each, and `build_medical` grades the answers and writes
what is left.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..grading import grade
from ..progress import Progress
from ..runs.eval_folder import SAMPLES, SETTINGS, read_problems
from ..runs.files import read_optional
from ..runs.samples import read_samples
from .benchmarks import BENCHMARKS
from .problems import Problem
from .training_set import Options, Part, Written, read_part, write_training_set

MEDQA_TRAIN, MEDMCQA_TRAIN = (
    dataclasses.replace(test, name=f"{test.name}_train", title=f"{test.title} (train)", split="train", problems=None)
    for test in (BENCHMARKS["medqa"], BENCHMARKS["medmcqa"])
)
MEDICAL_BENCHMARKS = ("medqa", "medmcqa", "pubmedqa", "medxpertqa", "mmlu_pro")


def medmcqa_train_problems(source: str | Path | None = None, revision: str | None = None) -> list[Problem]:
    """Read MedMCQA's training questions, without bad rows, as `build_medical` does."""
    return list(read_part(MEDMCQA_TRAIN, source, revision).problems)


def build_medical(
    folder: str | Path,
    options: Options,
    *,
    samples_folder: str | Path,
    benchmarks: Mapping[str, Sequence[Problem]],
    medqa_source: str | Path | None = None,
    medqa_revision: str | None = None,
    medmcqa_source: str | Path | None = None,
    medmcqa_revision: str | None = None,
) -> Written:
    """Write the training set, with the columns `prompt`, `solution` (a letter), `options`, `id` and `source`.

    `samples_folder` is a result folder of `trl-miner eval` with greedy answers to `medmcqa_train_problems`. A source
    is a local file or folder; None is the Hub.
    """
    medqa = read_part(MEDQA_TRAIN, medqa_source, medqa_revision)
    medmcqa = read_part(MEDMCQA_TRAIN, medmcqa_source, medmcqa_revision)
    easy = filtered_out(samples_folder, medmcqa.problems)
    kept = [problem for problem in medmcqa.problems if problem.id not in easy]
    counts = {**medmcqa.dropped, "answered right by the filtering model": len(medmcqa.problems) - len(kept)}
    record = {**medmcqa.record, "filtered_by": read_optional(Path(samples_folder) / SETTINGS).get("model")}
    parts = [medqa, Part(medmcqa.name, record, medmcqa.read, kept, counts)]
    title = "MedQA and MedMCQA for trl_miner"
    return write_training_set(folder, title, parts, options, grader="choice", benchmarks=benchmarks)


def filtered_out(samples_folder: str | Path, expected: Sequence[Problem] | None = None) -> set[str]:
    """Return the ids of MedMCQA's training questions to which the greedy answers are right.

    Each of the `expected` questions, by default those in the folder's `problems.jsonl`, must have an answer.
    """
    root = Path(samples_folder)
    temperature = read_optional(root / SETTINGS).get("temperature")
    if temperature:
        raise ValueError(
            f"The filtering answers must be greedy: those in {root} were sampled at temperature {temperature}. Answer "
            f"again with --temperature 0, into another folder."
        )
    asked, texts = _answers(root / MEDMCQA_TRAIN.name)
    expected = list(asked.values()) if expected is None else expected
    # A level is no part of the question.
    answered = [
        problem
        for problem in expected
        if problem.id in texts and asked.get(problem.id) == dataclasses.replace(problem, level=None)
    ]
    if len(answered) < len(expected):
        raise ValueError(
            f"Every training question of MedMCQA needs a greedy answer: {len(expected) - len(answered)} of "
            f"{len(expected)} have none in {root}. Run the same command again: it goes on where it stopped. "
            f"If it had finished, its questions are of another revision."
        )
    with Progress("grading the filter's answers", len(answered), unit="answers") as progress:
        verdicts = grade(
            "choice",
            [texts[problem.id] for problem in answered],
            [problem.solution for problem in answered],
            options=[problem.options for problem in answered],
            advance=progress.advance,
        )
    return {problem.id for problem, verdict in zip(answered, verdicts, strict=True) if verdict.is_correct}


def _answers(folder: Path) -> tuple[dict[str, Problem], dict[str, str]]:
    """Return the questions that were asked and the first answer to each, by id."""
    path = folder / SAMPLES
    if not path.is_file():
        raise ValueError(f"Greedy answers must lie in {path}: there is no such file. Run `trl-miner data medical`.")
    samples, _ = read_samples(path)
    texts = {problem: sample["text"] for (problem, number), sample in samples.items() if number == 0}
    rows = read_problems(folder)
    asked = {row["id"]: Problem(row["id"], row["question"], row["solution"], tuple(row["options"])) for row in rows}
    return asked, texts
