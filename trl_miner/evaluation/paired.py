"""Several models on the same problems, problem by problem."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ..progress import track
from ..runs.eval_folder import read_benchmark, read_settings
from ..tables import Table
from ..text import for_markdown
from .alike import sampling_differences
from .graded import Graded, benchmark_folders, read_graded
from .metrics import effect_text, paired_difference


def compare_folders(
    folders: Sequence[str | Path],
    *,
    resamples: int = 10_000,
    seed: int = 0,
    k: int | None = None,
    partial: bool = False,
    graded: Sequence[Sequence[Graded]] | None = None,
) -> dict[str, Any]:
    """Compare the second and later models with the first, problem by problem. Writes nothing.

    Args:
        folders: At least two result folders.
        resamples: Number of resamples for the intervals, and of swaps for the test.
        seed: Seed of both.
        k: The K of Pass@K; None: the largest that all have, for each benchmark.
        partial: Compare unfinished runs, on the problems and samples that they have.
        graded: The results of `read_graded` for these folders, k and partial; None: grade now.

    Returns:
        "folders", "comparisons" (for each later folder, benchmark and metric the two means, their difference, its
        interval and p) and "warnings".

    Raises:
        FileNotFoundError: Not a result folder.
        ValueError: Fewer than two folders, no common benchmark, or benchmarks that are not the same.
    """
    if len(folders) < 2:
        raise ValueError(f"A comparison needs at least two result folders: got {len(folders)}. Add one.")
    paths = [Path(folder) for folder in folders]
    wanted = set.intersection(*({path.name for path in benchmark_folders(folder)} for folder in paths))
    if not wanted:
        raise ValueError(f"The folders must share a benchmark: got none in {', '.join(map(str, paths))}.")
    _check_fingerprints(paths, wanted)
    if graded is None:
        graded = [read_graded(path, k=k, partial=partial, only=wanted) for path in paths]
    scored = set.intersection(*({one.name for one in several if one.is_scored} for several in graded)) & wanted
    if not scored:
        raise ValueError(f"The folders must share a benchmark with judged samples: got none of {', '.join(wanted)}.")
    graded = [[one for one in several if one.name in scored] for several in graded]
    pairs = [
        (path, first, second)
        for path, several in zip(paths[1:], graded[1:], strict=True)
        for first, second in zip(graded[0], several, strict=True)
    ]
    comparisons = []
    for path, first, second in track(pairs, "comparing", unit="benchmarks", leave=False):
        largest = k or min(one.num_samples for several in graded for one in several if one.name == first.name)
        comparisons += [
            {"folder": str(path)} | _pair(first, second, size, resamples, seed) for size in sorted({1, largest})
        ]
    warnings = _warnings(paths, graded, wanted)
    return {"folders": [str(path) for path in paths], "comparisons": comparisons, "warnings": warnings}


def comparison_verdicts(comparison: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each difference of a `comparison` of `compare_folders`, then its warnings."""
    first = comparison["folders"][0]
    sentences = [
        f"{one['folder']} against {first}, {one['title']}, {one['metric'].capitalize()}: "
        f"{effect_text(*(one[name] for name in ('difference', 'low', 'high', 'p_value')))}."
        for one in comparison["comparisons"]
    ]
    return [*sentences, *(f"Warning: {warning}" for warning in comparison["warnings"])]


def comparison_markdown(comparison: Mapping[str, Any]) -> str:
    """Return a `comparison` of `compare_folders` as Markdown: a sentence for each difference, then a table in percent,
    with notes."""
    rows = []
    for one in comparison["comparisons"]:
        first, second, difference, low, high = (
            f"{100 * one[name]:.2f}" for name in ("first", "second", "difference", "low", "high")
        )
        rows.append([one["folder"], one["title"], one["metric"], first, second, difference, f"[{low}, {high}]"])
        rows[-1].append(f"{one['p_value']:.4f}")
    header = ["Folder", "Benchmark", "Metric", "First", "This", "Difference", "95 % interval", "p"]
    notes = [
        f"Percent. First: {comparison['folders'][0]}. Positive: better than the first, on the same problems.",
        "Interval: bootstrap over problems. p: two-sided sign-flip test over problems, not adjusted for the number "
        "of rows.",
    ]
    sentences = "".join(f"- {for_markdown(sentence)}\n" for sentence in comparison_verdicts(comparison))
    return f"{sentences}\n{Table('Comparison', header, rows, notes).markdown()}"


def _pair(first: Graded, second: Graded, k: int, resamples: int, seed: int) -> dict[str, Any]:
    """Compare Pass@K of two models on the problems that both have."""
    scores = [
        dict(zip((problem["id"] for problem in one.problems), one.pass_at(k).tolist(), strict=True))
        for one in (first, second)
    ]
    common = [name for name in scores[0] if name in scores[1]]
    a_P, b_P = (np.array([score[name] for name in common]) for score in scores)
    paired = paired_difference(a_P, b_P, resamples=resamples, seed=seed)
    return {
        "benchmark": first.name,
        "title": first.about["title"],
        "metric": f"pass@{k}",
        "problems": len(common),
        "first": float(a_P.mean()),
        "second": float(b_P.mean()),
        **asdict(paired),
    }


def _warnings(paths: Sequence[Path], graded: Sequence[Sequence[Graded]], compared: set[str]) -> list[str]:
    """Return the warnings of each benchmark, and what makes the folders differ in more than the model."""
    warnings = [
        f"{path}, {one.name}: {text}"
        for path, several in zip(paths, graded, strict=True)
        for one in several
        for text in one.warnings
    ]
    for path in paths[1:]:
        if differing := sampling_differences(read_settings(paths[0]), read_settings(path)):
            warnings.append(f"{paths[0]} and {path} were not sampled alike: {'; '.join(differing)}.")
    for path in paths:
        own = sorted({one.name for one in benchmark_folders(path)} - compared)
        warnings += [f"Only some folders have {', '.join(own)}, as {path} does: not compared."] if own else []
    return warnings


def _check_fingerprints(paths: Sequence[Path], names: set[str]) -> None:
    for name in sorted(names):
        prints = [read_benchmark(path / name).get("fingerprint") for path in paths]
        for path, own in zip(paths, prints, strict=True):
            if own != prints[0]:
                raise ValueError(
                    f"A comparison needs the same problems: {name} has fingerprint {prints[0]} in {paths[0]} and "
                    f"{own} in {path}. Sample one of them again with the other's version of the benchmark."
                )
