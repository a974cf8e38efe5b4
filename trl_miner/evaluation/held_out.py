"""`held_out.json` of a run's folder: how many samples of each held-out problem were correct.

{"levels": [1, 2, ...], "trained_levels": [1, 2], "fingerprint": "3193fc...",
 "moments": {"before": {"step": 0, "num_samples": 8, "num_correct": [5, 0, ...]}, "step 50": ...,
             "after": ...}}

# P problems, n samples and c correct ones of each
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

FILE = "held_out.json"
BEFORE, AFTER = "before", "after"


@dataclass(frozen=True)
class Moment:
    """One scoring of the held-out problems."""

    step: int  # optimizer steps done
    num_samples: int  # n, of each problem
    num_correct: tuple[int, ...]  # (P,) c, in the problems' order
    # (P,) samples that have a verdict; None: all n
    num_scored: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        scored = self.verdicts
        if not self.num_correct or len(scored) != len(self.num_correct) or not all(
            0 <= right <= count <= self.num_samples
            for right, count in zip(self.num_correct, scored, strict=True)
        ):  # fmt: skip
            raise ValueError(f"counts must be between 0 and {self.num_samples}")

    @property
    def verdicts(self) -> tuple[int, ...]:
        """(P,) samples of each problem that have a verdict."""
        return self.num_scored or (self.num_samples,) * len(self.num_correct)

    @property
    def scores(self) -> dict[str, float]:
        """Pass@1 and Pass@n in [0, 1]: {"pass@1": 0.5, "pass@8": 0.75}. Pass@1 is over the
        problems with a verdict, Pass@n over those with n; without any it is left out."""
        counts = [*zip(self.num_correct, self.verdicts, strict=True)]
        found = {
            "pass@1": [right / scored for right, scored in counts if scored],
            f"pass@{self.num_samples}": [
                float(right > 0) for right, scored in counts if scored == self.num_samples
            ],
        }
        return {name: fmean(values) for name, values in found.items() if values}


@dataclass(frozen=True)
class HeldOut:
    """All scorings of a run."""

    moments: dict[str, Moment] = field(default_factory=dict)  # "before", "step 10", ..., "after"
    levels: tuple[Any, ...] | None = None  # (P,) of the problems; None: they have none
    trained_levels: tuple[Any, ...] | None = None  # those of the training problems
    # a hash of the problems, equal for runs that were scored on the same ones
    fingerprint: str | None = None

    @property
    def scores(self) -> dict[str, dict[str, float]]:
        """The scores by moment: {"before": {"pass@1": 0.5, "pass@8": 0.75}, "step 50": ...}."""
        return {name: moment.scores for name, moment in self.moments.items()}


def write_held_out(run: str | Path, held_out: HeldOut) -> None:
    """Write `held_out.json` into a run's folder, whole or not at all."""
    path = Path(run, FILE)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(asdict(held_out)), encoding="utf-8")
    part.replace(path)


def read_held_out(run: str | Path) -> HeldOut | None:
    """Return the scorings of a run's folder, by step; None: there are none.

    Raises:
        ValueError: The file is damaged.
    """
    path = Path(run, FILE)
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        moments = {name: _moment(values) for name, values in content.pop("moments").items()}
        by_step = dict(sorted(moments.items(), key=lambda pair: pair[1].step))
        if len({len(moment.num_correct) for moment in moments.values()}) > 1:
            raise ValueError("the moments are of different problems")
        found = HeldOut(by_step, **{key: value and tuple(value) if key != "fingerprint" else value for key, value in content.items()})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} is damaged ({error}). Delete it, or restore it.") from error
    return found if found.moments else None


def _moment(values: Mapping[str, Any]) -> Moment:
    counts = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    return Moment(**counts)
