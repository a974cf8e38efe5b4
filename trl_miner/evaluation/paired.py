"""Several models on the same problems, problem by problem."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..runs.eval_folder import read_settings
from .graded import Graded, read_graded
from .metrics import effect_text, paired_difference

# Settings of a result folder in which two models may differ and still be sampled alike.
_NOT_SAMPLING = "model revision adapter fingerprint dtype seed backend versions".split()


def compare_folders(
    folders: Sequence[str | Path], *, graded: Sequence[Sequence[Graded]] | None = None
) -> list[str]:
    """Compare the second and later models with the first, problem by problem. Writes nothing.

    Args:
        folders: At least two result folders.
        graded: The results of `read_graded` for these folders; None: grade now.

    Returns:
        A sentence for each later folder, benchmark and metric, Pass@1 and Pass@K of the largest K
        that all have: the two means, their difference, its interval over problems, and p of a
        sign-flip test, not adjusted for their number. Then warnings.
    """
    paths = [Path(folder) for folder in folders]
    of_folder = [
        {one.name: one for one in several if one.problems}
        for several in graded or map(read_graded, paths)
    ]
    shared = [name for name in of_folder[0] if all(name in own for own in of_folder)]
    if not shared:
        raise ValueError(f"{', '.join(map(str, paths))} share no benchmark with judged samples.")
    sentences, warnings = [], []
    for path, own in zip(paths[1:], of_folder[1:], strict=True):
        for name in shared:
            first, second = of_folder[0][name], own[name]
            if first.about["fingerprint"] != second.about["fingerprint"]:
                raise ValueError(
                    f"{name} has other problems in {path} than in {paths[0]}: fingerprint"
                    f" {second.about['fingerprint']} and {first.about['fingerprint']}. Sample one"
                    " of them again with the other's version of the benchmark."
                )
            largest = min(several[name].num_samples for several in of_folder)
            for k in sorted({1, largest}):
                sentences.append(f"{path} against {paths[0]}, {_difference(first, second, k)}")
        if differing := sampling_differences(read_settings(paths[0]), read_settings(path)):
            warnings.append(
                f"Warning: {paths[0]} and {path} were not sampled alike: {'; '.join(differing)}."
            )
    if alone := sorted({name for own in of_folder for name in own} - {*shared}):
        warnings.append(f"Warning: Only some folders have {', '.join(alone)}: not compared.")
    return sentences + warnings


def _difference(first: Graded, second: Graded, k: int) -> str:
    """Compare Pass@K of two models on the problems that both have."""
    ids = [[problem["id"] for problem in one.problems] for one in (first, second)]
    scores = [
        dict(zip(own, one.pass_at(k), strict=True))
        for own, one in zip(ids, (first, second), strict=True)
    ]
    common = [name for name in scores[0] if name in scores[1]]
    a_P, b_P = (np.array([score[name] for name in common]) for score in scores)
    found = paired_difference(a_P, b_P)
    return (
        f"{first.about['title']}, Pass@{k} {100 * b_P.mean():.2f} % against {100 * a_P.mean():.2f}"
        f" %, {len(common)} problems:"
        f" {effect_text(found.difference, found.low, found.high, found.p_value)} (p"
        f" {found.p_value:.4f})."
    )


def sampling_differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Name the settings in which two results differ, such as "temperature 0.7 and 1.0"; empty:
    alike."""
    names = sorted({*first, *second}.difference(_NOT_SAMPLING))
    pairs = [(name, first.get(name), second.get(name)) for name in names]
    return [
        f"{name} {_short(one)} and {_short(other)}" for name, one, other in pairs if one != other
    ]


def _short(value: Any) -> str:
    text = str(value)
    # both ends: paths and prompts differ at either
    return text if len(text) <= 48 else f"{text[:24]}…{text[-20:]}"
