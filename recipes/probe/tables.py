"""The tables of the page, from the raw results here and in the other studies.

    python recipes/probe/tables.py     # writes tables.md

Forecasts are those of results/probes.jsonl; measured effects are computed from the other studies'
raw results, as protocol.md says.
"""

import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from scipy import stats

from trl_miner.common.tables import Table
from trl_miner.pilot import judge
from trl_miner.runs.history import RunHistory
from trl_miner.runs.runs_file import read_runs

FOLDER = Path(__file__).resolve().parent
RECIPES = FOLDER.parent
sys.path[:0] = [str(FOLDER), str(RECIPES / "forks")]
import rule_tables  # noqa: E402
from analysis import Effect, baseline_of, effect, gradient_share, interval, paired  # noqa: E402
from rule_tables import read_lines  # noqa: E402

FORKS, MIRROR = "trl_miner/forks", "trl_miner/forks_mirror"
DOSES = ("_1", "_5", "_20", "_2e-4")  # end the name of an arm with another arm's direction
CHOOSE_PROMPTS = {"dapo", "ledger", "repeats", "boundary_gate", "rounds", "thompson"}
OF_MIXED = {"f_grpo", "passk"}
MAJORITY = 0.5
PILOT = "step 50"


@dataclass(frozen=True)
class World:
    """Runs that trained in one world from one kind of start, and the probes of it."""

    name: str
    probes: str
    raw: tuple[str, ...]
    dataset: str | None = None  # None: all runs of the files
    rate: float | None = None
    seeds: int = 4  # an arm with fewer is left out


BOTH, STUDY, AGAIN = (f"forks/results/{name}.jsonl.gz" for name in ("both_sides", "study", "again"))
TWO = "two-procedures/results"
WORLDS = (
    World("forks", "forks", (AGAIN, BOTH), FORKS, 2e-4),
    World("forks, at 1e-4", "forks", (BOTH,), FORKS, 1e-4),
    World("forks, first study", "forks", (STUDY,), FORKS),
    World("mirror", "mirror", (AGAIN, BOTH), MIRROR, 2e-4),
    World("mirror, at 1e-4", "mirror", (BOTH,), MIRROR, 1e-4),
    World("mirror, first study", "mirror", (STUDY,), MIRROR),
    World("arithmetic", "arithmetic", ("../tests/bench/results/whole_run_arithmetic.jsonl",)),
    World("strategies", "strategies", ("study/methods.jsonl.gz",)),
    World(
        "two procedures",
        "two procedures",
        (f"{TWO}/arms_amd.jsonl.gz", f"{TWO}/arms_xeon.jsonl.gz"),
    ),
    World("two procedures, mirror", "two procedures, mirror", (f"{TWO}/mirror_xeon.jsonl.gz",)),
    World(
        "SmolLM2-135M, arithmetic", "SmolLM2-135M, arithmetic", ("forks/results/real_model.jsonl.gz",)
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Forecast:
    """What the probes of a start say of a method."""

    verdicts: tuple[str, ...]
    size: float  # the mean effect per unit step
    cosine: float

    @property
    def sign(self) -> str:
        """The verdict of most, else "cannot tell"."""
        word, count = Counter(self.verdicts).most_common(1)[0]
        return word if count > MAJORITY * len(self.verdicts) else "cannot tell"


@dataclass(frozen=True)
class Arm:
    """An arm with its forecast and its measured effect."""

    world: str
    name: str
    forecast: Forecast
    effect: Effect
    share: float  # of its all-right prompts in the gradient; NaN: not measured, or none

    @property
    def sign(self) -> str:
        """Of the measured effect."""
        if abs(self.effect.mean) <= self.effect.half_width:
            return "cannot tell"
        return "up" if self.effect.mean > 0 else "down"

    @property
    def size(self) -> float:
        """The forecast of the size."""
        return self.forecast.size * self.share / (1 - self.share)


def plain_name(label: str) -> str:
    """Return a method's own name: "oracle" of "procedures.oracle (the recipe's)"."""
    return label.partition(" (")[0].rpartition(".")[2] if "GRPO" not in label else "grpo"


def forecasts(lines: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Forecast]]:
    """Return the forecast of each method by start."""
    found: dict[str, dict[str, list[Any]]] = {}
    for line in lines:
        # A recipe's own credit is that of a name only where the probe is called by it
        start, _, own = str(line["name"]).partition(", ")
        is_own = own in ("uniqueness", "constant")
        start = start if is_own else line["name"]
        for place, (label, by_target) in enumerate(line["methods"].items()):
            if is_own and place:
                continue
            name = own if is_own else plain_name(label)
            found.setdefault(start, {}).setdefault(name, []).append(by_target["target"])
    return {
        start: {
            name: Forecast(
                tuple(push["verdict"] for push in pushes),
                fmean(push["effect"] for push in pushes),
                fmean(push["cosine"] or math.nan for push in pushes),
            )
            for name, pushes in by_name.items()
        }
        for start, by_name in found.items()
    }


def real_probes() -> list[dict[str, Any]]:
    """Return the probes of the real model's fresh starts, by the name of their world."""
    ending = ", target, start"
    lines = [line for line in read_lines("rule_probes") if line["name"].endswith(ending)]
    named = [line | {"name": line["name"].removesuffix(ending)} for line in lines]
    return [line for line in named if line["name"] not in rule_tables.SMALL_WORLDS]


@cache
def read(name: str) -> list[RunHistory]:
    return [*read_runs(RECIPES / name)]


def runs_of(world: World) -> dict[str, dict[int, RunHistory]]:
    """Return a world's finished runs by method and seed."""
    found: dict[str, dict[int, RunHistory]] = {}
    for run in (run for name in world.raw for run in read(name)):
        is_of = world.dataset in (None, run.settings.get("dataset_name"))
        rate = float(run.settings["learning_rate"])
        if is_of and run.finished and run.method and world.rate in (None, rate):
            assert run.seed is not None
            # of one rate, GRPO is GRPO whatever the recipe is called
            method = run.method.removesuffix("_2e-4") if world.rate else run.method
            found.setdefault(method, {})[run.seed] = run
    return found


def beyond(run: RunHistory) -> list[int]:
    """Return the places of the held-out problems beyond the trained levels; all where none is."""
    held_out = run.held_out
    assert held_out is not None
    ranges = held_out.ranges()
    return next((places for name, places in ranges.items() if "beyond" in name), all_of(run))


def all_of(run: RunHistory) -> list[int]:
    assert run.held_out is not None and run.held_out.after is not None
    return [*range(len(run.held_out.after.num_correct))]


def log_odds(run: RunHistory) -> float:
    """Return the logit of Pass@1 on the problems beyond the trained levels."""
    assert run.held_out is not None and run.held_out.after is not None
    after, places = run.held_out.after, beyond(run)
    right, total = sum(after.num_correct[p] for p in places), len(places) * after.num_samples
    return math.log((right + 0.5) / (total - right + 0.5))


def direction_of(arm: str) -> str:
    """Return the name of the method whose direction an arm has."""
    for ending in DOSES:
        arm = arm.removesuffix(ending)
    return arm


def arms() -> list[Arm]:
    """Return all arms that have both."""
    known = forecasts([*read_lines("probes"), *real_probes()])
    found = []
    for world in WORLDS:
        methods = runs_of(world)
        for name, runs in sorted(methods.items()):
            forecast = known.get(world.probes, {}).get(direction_of(name))
            baseline = baseline_of(name, methods)
            if (
                forecast is None
                or baseline is None
                or direction_of(name) in CHOOSE_PROMPTS | {"grpo"}
            ):
                continue
            differences = paired(runs, methods[baseline], log_odds)
            if len(differences) >= world.seeds:
                shares = [gradient_share(run) for run in runs.values()]
                share = float(np.nanmean(shares)) if not all(map(math.isnan, shares)) else math.nan
                found.append(
                    Arm(world.name, name, forecast, effect(differences), share or math.nan)
                )
    return found


def arm_table(found: Sequence[Arm]) -> Table:
    """Return each arm's forecast and effect."""
    rows = []
    for arm in found:
        counts = Counter(arm.forecast.verdicts)
        verdicts = ", ".join(f"{counts[word]} {word}" for word in sorted(counts))
        share = "n/a" if math.isnan(arm.share) else f"{100 * arm.share:.1f}"
        words = {arm.forecast.sign, arm.sign}
        agree = "cannot tell" if "cannot tell" in words else "no" if len(words) > 1 else "yes"
        rows.append(
            [arm.world, arm.name, verdicts, f"{arm.forecast.cosine:+.2f}", f"{arm.forecast.size:+.2f}",
             share, str(arm.effect.seeds), interval(arm.effect), arm.sign, agree]
        )  # fmt: skip
    header = ["World", "Arm", "Probes", "Cosine", "Per unit step", "Share, %", "Seeds",
              "Effect, log-odds", "Measured", "Same sign"]  # fmt: skip
    return Table("Forecast and effect", header, rows)


def sign_table(found: Sequence[Arm]) -> Table:
    """Count how often forecast and effect agree, of all arms and of those with one method each."""
    groups = {
        "all arms": found,
        "credit on all-right prompts": [arm for arm in found if arm.name not in OF_MIXED],
        "methods of mixed prompts": [arm for arm in found if arm.name in OF_MIXED],
    }
    rows = []
    for name, group in groups.items():
        decided = [arm for arm in group if arm.sign != "cannot tell"]
        called = [arm for arm in decided if arm.forecast.sign != "cannot tell"]
        same = sum(arm.sign == arm.forecast.sign for arm in called)
        rows.append([name, str(len(group)), str(len(decided)), str(len(called)), str(same)])
    header = ["Arms", "Number", "With a decided effect", "Of these, called", "With the same sign"]
    return Table("Signs", header, rows)


def rank_table(found: Sequence[Arm], draws: int = 2_000) -> Table:
    """Return the rank correlations of forecasts and effects, with intervals over worlds."""
    sized = [arm for arm in found if not math.isnan(arm.share)]
    ways = {
        "effect per unit step, all arms": [
            (a.world, a.forecast.size, a.effect.mean) for a in found
        ],
        "effect per unit step, arms with a share": [
            (a.world, a.forecast.size, a.effect.mean) for a in sized
        ],
        "effect per unit step times the dose, arms with a share": [
            (a.world, a.size, a.effect.mean) for a in sized
        ],
    }
    rows = []
    rng = np.random.default_rng(0)
    for name, triples in ways.items():
        by_world: dict[str, list[tuple[float, float]]] = {}
        for world, forecast, measured in triples:
            # Settings of one world share its start and are drawn together
            by_world.setdefault(world.partition(", ")[0], []).append((forecast, measured))
        groups = [*by_world.values()]
        drawn = []
        for _ in range(draws if len(groups) > 1 else 0):
            pairs = [
                pair
                for place in rng.integers(len(groups), size=len(groups))
                for pair in groups[place]
            ]
            if len({*pairs}) > 1:  # a single arm, drawn again and again, has no order
                drawn.append(stats.spearmanr(*zip(*pairs, strict=True)).statistic)
        value = stats.spearmanr(
            *zip(*(pair for group in groups for pair in group), strict=True)
        ).statistic
        low, high = np.nanpercentile(drawn, (2.5, 97.5)) if drawn else (math.nan, math.nan)
        rows.append(
            [name, str(len(triples)), str(len(groups)), f"{value:+.2f} ({low:+.2f} to {high:+.2f})"]
        )
    return Table("Order", ["Forecast", "Arms", "Worlds", "Rank correlation"], rows)


def at_pilot(run: RunHistory, places: Sequence[int] | None = None) -> Any:
    """Return what a run had scored at the pilot's step, as `judge` takes it; of some problems
    alone, without their levels."""
    assert run.held_out is not None
    moment = run.held_out.moments[PILOT]
    if places is None:
        return replace(run.held_out, moments={"after": moment})
    counts = tuple(moment.num_correct[place] for place in places)
    own = replace(moment, num_correct=counts, num_scored=None)
    return replace(run.held_out, moments={"after": own}, levels=None, trained_levels=None)


def control_table() -> Table:
    """Return what the probes say of a target like the training set."""
    known = forecasts(read_lines("probes"))
    rows = []
    for start, by_name in known.items():
        if start.endswith(", control"):
            for name, forecast in by_name.items():
                rows.append([start, name, ", ".join(forecast.verdicts), f"{forecast.cosine:+.2f}"])
    return Table("A target like the training set", ["Start", "Method", "Probes", "Cosine"], rows)


def pilot_table() -> Table:
    """Judge recorded first steps as a pilot does, by seed, and follow the rule."""
    known = forecasts(read_lines("probes"))
    rows = []
    for world in WORLDS:
        methods = runs_of(world)
        if "miner_5" not in methods or not world.dataset:
            continue
        method, grpo = methods["miner_5"], methods["grpo" if world.rate else "grpo_2e-4"]
        seeds = sorted(set(method) & set(grpo))
        words = {
            seed: judge([at_pilot(method[seed])], [at_pilot(grpo[seed])], True).word
            for seed in seeds
        }
        easy = [place for place in all_of(grpo[seeds[0]]) if place not in {*beyond(grpo[seeds[0]])}]
        like = Counter(
            judge([at_pilot(method[seed], easy)], [at_pilot(grpo[seed], easy)], True).word
            for seed in seeds
        )
        changes = {seed: log_odds(method[seed]) - log_odds(grpo[seed]) for seed in seeds}
        says_up = known.get(world.probes, {}).get("miner")
        taken = [
            changes[seed] if words[seed] == "for" and says_up and says_up.sign == "up" else 0.0
            for seed in seeds
        ]
        counts = Counter(words.values())
        rows.append(
            [
                world.name,
                str(len(seeds)),
                *(str(counts[word]) for word in ("for", "against", "cannot tell")),
                "/".join(str(like[word]) for word in ("for", "against", "cannot tell")),
                interval(effect([*changes.values()])),
                interval(effect(taken)) if any(taken) else "0",
            ]
        )
    header = ["World", "Seeds", "For", "Against", "Cannot tell", "On trained levels",
              "Always MINER at 5 %", "The rule"]  # fmt: skip
    return Table("The pilot and the rule, on recorded runs", header, rows)


def way_table() -> Table:
    """Return what the probes on the way of GRPO say of MINER."""
    rows = []
    for line in read_lines("way"):
        own = {plain_name(label): by_target for label, by_target in line["methods"].items()}
        row = [line["name"], str(line["seed"]), f"{100 * line['kinds']['all right']:.0f}"]
        row.append(f"{100 * line['pass@1']['target']:.0f}")
        for name in ("miner", "entropy", "oracle"):
            push = own.get(name, {}).get("target")
            row.append("n/a" if push is None else f"{push['verdict']} ({push['cosine'] or 0:+.2f})")
        rows.append(row)
    header = [
        "Run",
        "Seed",
        "All right, %",
        "Pass@1 on the target, %",
        "MINER",
        "Entropy bonus",
        "Oracle",
    ]
    return Table("On the way of GRPO", header, rows)


def text() -> str:
    """Return all tables with their titles."""
    found = arms()
    tables = [
        sign_table(found),
        rank_table(found),
        arm_table(found),
        control_table(),
        pilot_table(),
        way_table(),
        *rule_tables.tables(),
    ]
    return "".join(
        f"## {table.title}\n\n{table.markdown().rstrip()}\n\n" for table in tables if table.rows
    )


if __name__ == "__main__":
    page = "# Does the probe's forecast hold? All tables\n\n"
    page += "`python recipes/probe/tables.py` makes this page from the raw results.\n\n" + text()
    (FOLDER / "tables.md").write_text(page.rstrip() + "\n", encoding="utf-8")
