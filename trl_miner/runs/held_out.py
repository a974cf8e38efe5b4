"""`held_out.json` of a run folder: how many samples of each held-out problem were right, and the
scores that follow.

{"problems": {"fingerprint": "3193fc...", "level": [1, 2, ...], "trained_levels": [1, 2]},
 "moments": {"before": {"step": 0, "num_samples": 8, "num_correct": [5, 0, ...]}, "step 50": ..., "after": ...}}

# P problems, n samples and c right ones of each
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

from pydantic import BeforeValidator, TypeAdapter
from pydantic.dataclasses import dataclass as checked_dataclass

from .files import ADVICE, read_optional, write_json
from .records import Count, Number, Samples, record

FILE = "held_out.json"
BEFORE, AFTER = "before", "after"
# A training's warning, behind two numbers: "10 of 20 ...". A pilot finds it in the log.
TRAINED = "held-out problems are in the training data too"


def _counts(value: Any) -> Any:
    """Return counts as a list: in the studies of the recipes those below 10 are one text, with a
    digit for each."""
    return (
        [int(digit) for digit in value] if isinstance(value, str) and value.isdecimal() else value
    )


@checked_dataclass(frozen=True)
class Moment:
    """One scoring of the held-out problems."""

    step: Count  # optimizer steps done
    num_samples: Samples  # n, of each problem
    # c of each problem, in the problems' order
    num_correct: Annotated[tuple[Count, ...], BeforeValidator(_counts)]
    # samples of each problem that had a verdict; None: all n
    num_scored: tuple[Count, ...] | None = None

    def __post_init__(self) -> None:
        counts = zip(self.num_correct, self.num_verdicts, strict=True)
        if not all(right <= scored <= self.num_samples for right, scored in counts):
            raise ValueError(f"must hold counts between 0 and {self.num_samples}")

    @property
    def whole(self) -> set[int]:
        """The places of the problems whose samples all had a verdict."""
        return {place for place, count in enumerate(self.num_verdicts) if count == self.num_samples}

    @property
    def scores(self) -> dict[str, float]:
        """Pass@1 and Pass@n in [0, 1], each over the problems with as many samples that have a
        verdict."""
        counts = [*zip(self.num_correct, self.num_verdicts, strict=True)]
        found = {
            "pass@1": [right / scored for right, scored in counts if scored],
            f"pass@{self.num_samples}": [
                float(right > 0) for right, scored in counts if scored == self.num_samples
            ],
        }
        return {name: fmean(values) for name, values in found.items() if values}

    @property
    def num_verdicts(self) -> tuple[int, ...]:
        """Samples of each problem that had a verdict."""
        return self.num_scored or (self.num_samples,) * len(self.num_correct)


@dataclass(frozen=True)
class HeldOut:
    """The right samples of each held-out problem, each time the run was scored."""

    moments: Mapping[str, Moment]  # by name: "before", "step 10", ..., "after"; steps ascending
    levels: tuple[Any, ...] | None = None  # of each problem; None: problems have no levels
    trained_levels: tuple[Any, ...] | None = None  # of the training problems; None: not known
    # a hash of the problems, equal for runs that were scored on the same ones
    fingerprint: str | None = None

    @property
    def after(self) -> Moment | None:
        """The scoring after training; None: there was none."""
        return self.moments.get(AFTER)

    @property
    def by_step(self) -> dict[float, dict[str, float]]:
        """The scores by optimizer steps done; those after the training count for its last step."""
        return {float(moment.step): moment.scores for moment in self.moments.values()}

    @property
    def scores(self) -> dict[str, dict[str, float]]:
        """The scores by moment: {"before": {"pass@1": 0.5, "pass@8": 0.75}, "step 50": {...},
        ...}."""
        return {name: moment.scores for name, moment in self.moments.items()}

    def until(self, step: int) -> "HeldOut | None":
        """Return the moments up to an optimizer step, without "after"; None: there is none."""
        moments = {
            name: moment
            for name, moment in self.moments.items()
            if name != AFTER and moment.step <= step
        }
        return replace(self, moments=moments) if moments else None

    def ranges(self) -> dict[str, list[int]]:
        """Return the places of the problems by range of levels: trained, beyond training, or all
        where unknown."""
        size = len(next(iter(self.moments.values())).num_correct)
        if self.levels is None or self.trained_levels is None:
            return {"all problems": list(range(size))}
        trained = set(self.trained_levels)
        inside = [place for place in range(size) if self.levels[place] in trained]
        outside = [place for place in range(size) if self.levels[place] not in trained]
        beyond = _span(self.levels[place] for place in outside)
        ranges = {
            f"trained levels ({_span(trained)})": inside,
            f"levels beyond training ({beyond})": outside,
        }
        return {name: places for name, places in ranges.items() if places}

    def as_json(self) -> dict[str, Any]:
        """Return the content of `held_out.json`."""
        problems = {
            "fingerprint": self.fingerprint,
            "level": self.levels,
            "trained_levels": self.trained_levels,
        }
        return {
            "problems": problems,
            "moments": _MOMENTS.dump_python(self.moments, mode="json", exclude_none=True),
        }


_MOMENTS = TypeAdapter(Mapping[str, Moment])
_Levels = tuple[str | int | Number, ...]
HeldOutFile = record(
    {
        "problems": record({}, {"fingerprint": str, "level": _Levels, "trained_levels": _Levels}),
        "moments": dict[str, Moment],
    }
)
_RECORD = TypeAdapter(HeldOutFile)


def write_held_out(run: Path, held_out: HeldOut) -> None:
    """Write `held_out.json`. `evaluation.in_training` calls it after each scoring."""
    write_json(run / FILE, held_out.as_json(), indent=None)


def read_held_out(run: Path) -> HeldOut | None:
    """Read `held_out.json`, for `history.read_run` and resumed runs; None: there is none, or it has
    no moment."""
    content = read_optional(run / FILE, _RECORD)
    try:
        return held_out_of(content)
    except ValueError as error:
        raise ValueError(f"{run / FILE}: {error}. {ADVICE}") from error


def held_out_of(content: Mapping[str, Any]) -> HeldOut | None:
    """Return the counts in the content of `held_out.json`, which may be empty. Raise ValueError if
    they disagree."""
    if not content or not content["moments"]:
        return None
    problems: Mapping[str, Any] = content["problems"]
    moments = dict(sorted(content["moments"].items(), key=lambda pair: pair[1].step))
    levels = problems.get("level")
    sizes = {len(moment.num_correct) for moment in moments.values()} | (
        {len(levels)} if levels is not None else set()
    )
    if len(sizes) != 1 or 0 in sizes:
        raise ValueError(
            f"all moments and levels must be of the same problems, and there are {sorted(sizes)}"
        )
    return HeldOut(moments, levels, problems.get("trained_levels"), problems.get("fingerprint"))


def _span(levels: Iterable[Any]) -> str:
    """Return the levels in words: 1 to 6 for whole numbers without a gap."""
    known = sorted(set(levels), key=lambda level: (isinstance(level, str), level))
    if (
        len(known) > 2
        and all(isinstance(level, int) for level in known)
        and known[-1] - known[0] == len(known) - 1
    ):
        return f"{known[0]} to {known[-1]}"
    return ", ".join(map(str, known))
