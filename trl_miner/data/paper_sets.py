"""The paper's training sets (arXiv 2601.04731): DeepScaleR-Preview, and a medical one.

The medical one is MedQA, and of MedMCQA the questions that a model does not answer: the paper lets
Llama-3.1-8B-Instruct answer all of them by greedy decoding, and drops those that it answers right. Here
`evaluation.evaluate.sample_filter` draws an answer to each of `medmcqa_train_problems`, and `build_medical` grades the
answers and writes what is left.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..grading import grade
from ..progress import Progress
from ..runs.eval_folder import SAMPLES, SETTINGS, read_problems, read_samples
from ..runs.files import read_optional
from .benchmarks import BENCHMARKS
from .problems import Benchmark, Problem
from .training_set import Options, Part, Written, read_part, write_training_set

DEEPSCALER = Benchmark(
    "deepscaler",
    "DeepScaleR",
    "agentica-org/DeepScaleR-Preview-Dataset",
    "train",
    None,
    "math",
    1,
    question="problem",
    solution="answer",
)
MEDQA_TRAIN, MEDMCQA_TRAIN = (
    dataclasses.replace(test, name=f"{test.name}_train", title=f"{test.title} (train)", split="train", problems=None)
    for test in (BENCHMARKS["medqa"], BENCHMARKS["medmcqa"])
)
MATH_BENCHMARKS = ("aime24", "aime25", "amc23", "hmmt25", "math500", "olympiadbench")
MEDICAL_BENCHMARKS = ("medqa", "medmcqa", "pubmedqa", "medxpertqa", "mmlu_pro")


def build_deepscaler(
    folder: str | Path,
    options: Options,
    *,
    benchmarks: Mapping[str, Sequence[Problem]],
    source: str | Path | None = None,
    revision: str | None = None,
) -> Written:
    """Write DeepScaleR, with the columns `prompt`, `solution`, `id` and `source`. A source is a local path."""
    part = read_part(DEEPSCALER, source, revision)
    title = "DeepScaleR-Preview for trl_miner"
    return write_training_set(folder, title, [part], options, grader="math", benchmarks=benchmarks)


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
    """Write the medical set, with the columns `prompt`, `solution` (a letter), `options`, `id` and `source`.

    `samples_folder` is a result folder of `trl-miner eval` with greedy answers to `medmcqa_train_problems`.
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


def filtered_out(samples_folder: str | Path, questions: Sequence[Problem]) -> set[str]:
    """Return the ids of the questions to which the greedy answers in a folder are right; each must have one."""
    root = Path(samples_folder)
    if temperature := read_optional(root / SETTINGS).get("temperature"):
        raise ValueError(
            f"The filtering answers must be greedy: those in {root} were sampled at temperature {temperature}. Answer "
            f"again with --temperature 0, into another folder."
        )
    answers = _answers(root / MEDMCQA_TRAIN.name)
    # With the options: the folder may be of another revision. A level is no part of the question.
    keys = [dataclasses.replace(problem, level=None) for problem in questions]
    answered = [problem for problem in keys if problem in answers]
    if len(answered) < len(questions):
        raise ValueError(
            f"Every training question of MedMCQA needs a greedy answer: {len(questions) - len(answered)} of "
            f"{len(questions)} have none in {root}. Run the same command again: it goes on where it stopped. "
            f"If it had finished, its questions are of another revision."
        )
    with Progress("grading the filter's answers", len(answered), unit="answers") as progress:
        verdicts = grade(
            "choice",
            [answers[problem] for problem in answered],
            [problem.solution for problem in answered],
            options=[problem.options for problem in answered],
            advance=progress.advance,
        )
    return {problem.id for problem, verdict in zip(answered, verdicts, strict=True) if verdict.is_correct}


def _answers(folder: Path) -> dict[Problem, str]:
    """Return the first answer to each question that was asked."""
    path = folder / SAMPLES
    if not path.is_file():
        raise ValueError(f"Greedy answers must lie in {path}: there is no such file. Run `trl-miner data medical`.")
    samples, _ = read_samples(path)
    texts = {problem: sample["text"] for (problem, number), sample in samples.items() if number == 0}
    return {
        Problem(row["id"], row["question"], row["solution"], tuple(row["options"])): texts[row["id"]]
        for row in read_problems(folder)
        if row["id"] in texts
    }
