"""Several models on the same problems, problem by problem."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ..progress import track
from ..runs.eval_folder import read_settings
from .alike import sampling_differences
from .graded import Graded, read_graded
from .metrics import effect_text, paired_difference


def compare_folders(
    folders: Sequence[str | Path],
    *,
    resamples: int = 10_000,
    k: int | None = None,
    graded: Sequence[Sequence[Graded]] | None = None,
) -> dict[str, Any]:
    """Compare the second and later models with the first, problem by problem. Writes nothing.

    Args:
        folders: At least two result folders.
        resamples: Number of resamples for the intervals, and of swaps for the test.
        k: The K of Pass@K; None: the largest that all have, for each benchmark.
        graded: The results of `read_graded` for these folders and k; None: grade now.

    Returns:
        "folders", "comparisons" (for each later folder, benchmark and metric the two means, their difference, its
        interval over problems and p of a sign-flip test, not adjusted for their number) and "warnings".

    Raises:
        FileNotFoundError: Not a result folder.
        ValueError: Fewer than two folders, no common benchmark, or benchmarks that are not the same.
    """
    if len(folders) < 2:
        raise ValueError(f"A comparison needs at least two result folders: got {len(folders)}. Add one.")
    paths = [Path(folder) for folder in folders]
    if graded is None:
        graded = [read_graded(path, k=k) for path in paths]
    of_folder = [{one.name: one for one in several if one.is_scored} for several in graded]
    shared = [name for name in of_folder[0] if all(name in own for own in of_folder)]
    if not shared:
        raise ValueError(
            f"The folders must share a benchmark with judged samples: got none in {', '.join(map(str, paths))}."
        )
    for name in shared:
        _check_fingerprints(name, paths, [own[name] for own in of_folder])
    comparisons = []
    pairs = [(path, own, name) for path, own in zip(paths[1:], of_folder[1:], strict=True) for name in shared]
    for path, own, name in track(pairs, "comparing", unit="benchmarks", leave=False):
        largest = k or min(each[name].num_samples for each in of_folder)
        comparisons += [
            {"folder": str(path)} | _pair(of_folder[0][name], own[name], size, resamples)
            for size in sorted({1, largest})
        ]
    warnings = [
        f"{path}, {one.name}: {text}"
        for path, several in zip(paths, graded, strict=True)
        for one in several
        for text in one.warnings
    ]
    for path in paths[1:]:
        if differing := sampling_differences(read_settings(paths[0]), read_settings(path)):
            warnings.append(f"{paths[0]} and {path} were not sampled alike: {'; '.join(differing)}.")
    if alone := sorted({name for own in of_folder for name in own} - {*shared}):
        warnings.append(f"Only some folders have {', '.join(alone)}: not compared.")
    return {"folders": [str(path) for path in paths], "comparisons": comparisons, "warnings": warnings}


def comparison_sentences(comparison: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each difference of a `comparison` of `compare_folders`, then its warnings."""
    first = comparison["folders"][0]
    sentences = [
        f"{one['folder']} against {first}, {one['title']}, {one['metric'].capitalize()} "
        f"{100 * one['second']:.2f} % against {100 * one['first']:.2f} %, {one['problems']} problems: "
        f"{effect_text(*(one[name] for name in ('difference', 'low', 'high', 'p_value')))} (p {one['p_value']:.4f})."
        for one in comparison["comparisons"]
    ]
    return [*sentences, *(f"Warning: {warning}" for warning in comparison["warnings"])]


def _pair(first: Graded, second: Graded, k: int, resamples: int) -> dict[str, Any]:
    """Compare Pass@K of two models on the problems that both have."""
    scores = [
        dict(zip((problem["id"] for problem in one.problems), one.pass_at(k).tolist(), strict=True))
        for one in (first, second)
    ]
    common = [name for name in scores[0] if name in scores[1]]
    a_P, b_P = (np.array([score[name] for name in common]) for score in scores)
    return {
        "benchmark": first.name,
        "title": first.about["title"],
        "metric": f"pass@{k}",
        "problems": len(common),
        "first": float(a_P.mean()),
        "second": float(b_P.mean()),
        **asdict(paired_difference(a_P, b_P, resamples=resamples)),
    }


def _check_fingerprints(name: str, paths: Sequence[Path], several: Sequence[Graded]) -> None:
    prints = [one.about.get("fingerprint") for one in several]
    for path, own in zip(paths, prints, strict=True):
        if own != prints[0]:
            raise ValueError(
                f"A comparison needs the same problems: {name} has fingerprint {prints[0]} in {paths[0]} and {own} in "
                f"{path}. Sample one of them again with the other's version of the benchmark."
            )
