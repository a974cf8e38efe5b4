"""The tables of the fresh trainings: protocol.md, "A rule" and "Steering". tables.py calls them."""

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis import Effect, effect, interval

from trl_miner.common.tables import Table
from trl_miner.pilot import judge
from trl_miner.runs.history import RunHistory
from trl_miner.runs.runs_file import read_runs

Runs = Mapping[str, Mapping[int, RunHistory]]  # by arm and seed

RESULTS = Path(__file__).resolve().parent / "results"
# The levels whose problems are the test, and those of the training
SMALL_WORLDS, SMALL_LEVELS = ("forks", "mirror"), {2, 3, 4}
REAL_WORLDS, REAL_LEVELS = ("two-procedures", "two-procedures-mirror"), {"3", "4"}
WORDS = {"up": "for", "down": "against", "cannot tell": "cannot tell"}


def read_lines(name: str) -> list[dict[str, Any]]:
    """Return the lines of a file of results; none if there is no such file."""
    path = RESULTS / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def is_real(world: str) -> bool:
    return world in REAL_WORLDS


def title(world: str) -> str:
    return world.replace("-procedures-", "-procedures, ").replace("-", " ")


def read_by_arm(name: str) -> dict[str, dict[int, RunHistory]]:
    """Return the finished runs of a file, which name themselves ARM/seedN."""
    path = RESULTS / f"{name}.jsonl.gz"
    found: dict[str, dict[int, RunHistory]] = {}
    for run in read_runs(path) if path.is_file() else []:
        arm, _, seed = run.name.partition("/seed")
        if run.finished and run.held_out is not None and "after" in run.held_out.moments:
            found.setdefault(arm, {})[int(seed)] = run
    return found


def test_places(world: str, run: RunHistory) -> list[int]:
    """Return the places of the problems that decide."""
    assert run.held_out is not None and run.held_out.levels is not None
    levels = run.held_out.levels
    if is_real(world):  # the even ones are the target
        return [place for place in range(1, len(levels), 2) if levels[place] in REAL_LEVELS]
    return [place for place, level in enumerate(levels) if level in SMALL_LEVELS]


def counts(world: str, run: RunHistory) -> tuple[int, int]:
    """Return the right samples, and all of them, of the problems that decide."""
    assert run.held_out is not None
    after, places = run.held_out.moments["after"], test_places(world, run)
    return sum(after.num_correct[place] for place in places), len(places) * after.num_samples


def log_odds(world: str, run: RunHistory) -> float:
    """Return the logit of Pass@1 on the problems that decide."""
    right, total = counts(world, run)
    return math.log((right + 0.5) / (total - right + 0.5))


def probed(world: str, target: str) -> dict[int, str]:
    """Return the probe's verdict on MINER at the start, by seed."""
    name = f"{title(world)}, {target}, {'start' if target == 'target' else target}"
    return {
        line["seed"]: line["methods"]["miner (the recipe's)"]["target"]["verdict"]
        for line in read_lines("rule_probes")
        if line["name"] == name
    }


def piloted(world: str, is_of_target: Callable[[Any], bool]) -> dict[int, str]:
    """Return the pilot's verdict on MINER by seed, on the problems of some levels."""
    arms = read_by_arm(f"rule_pilots_{world}")
    words = {}
    for seed in sorted(set(arms.get("miner", {})) & set(arms.get("grpo", {}))):
        scored = [
            [on_levels(run, is_of_target)] for run in (arms["miner"][seed], arms["grpo"][seed])
        ]
        words[seed] = judge(*scored, is_named=True).word
    return words


def on_levels(run: RunHistory, is_of_target: Callable[[Any], bool]) -> Any:
    """Return a run's scores on the problems of some levels, as if it did not know their levels."""
    assert run.held_out is not None and run.held_out.levels is not None
    after = run.held_out.moments["after"]
    correct = [
        count
        for count, level in zip(after.num_correct, run.held_out.levels, strict=True)
        if is_of_target(level)
    ]
    own = replace(after, num_correct=tuple(correct), num_scored=None)
    return replace(run.held_out, moments={"after": own}, levels=None, trained_levels=None)


def decisions(world: str) -> dict[int, bool]:
    """Return whether the rule trains with MINER, by seed: probe and pilot both say so."""
    levels = REAL_LEVELS if is_real(world) else SMALL_LEVELS
    pilots = piloted(world, levels.__contains__)
    return {
        seed: (verdict, pilots[seed]) == ("up", "for")
        for seed, verdict in probed(world, "target").items()
        if seed in pilots
    }


def steered_runs(world: str, arms: Runs) -> dict[int, RunHistory]:
    """Return the run that a steered training is, by seed."""
    return {
        line["seed"]: arms[line["run"]][line["seed"]]
        for line in read_lines("steered")
        if line["name"] == world and line["seed"] in arms.get(line["run"], {})
    }


def with_rule(world: str) -> dict[str, dict[int, RunHistory]]:
    """Return a world's runs, with those that the rule and the steering end with."""
    runs = read_by_arm(f"rule_{world}")
    arms = {arm: by_seed for arm, by_seed in runs.items() if not arm.startswith("steered-")}
    taken = {
        seed: arms.get("miner_5" if takes else "grpo", {}).get(seed)
        for seed, takes in decisions(world).items()
    }
    rule = {seed: run for seed, run in taken.items() if run is not None}
    steered = steered_runs(world, runs)
    return arms | {"the rule": rule} | ({"steered": steered} if steered else {})


def against(world: str, runs: Mapping[int, RunHistory], others: Mapping[int, RunHistory]) -> Effect:
    """Return the mean difference in log-odds over the seeds that both have."""
    return effect(
        [
            log_odds(world, runs[seed]) - log_odds(world, others[seed])
            for seed in sorted(set(runs) & set(others))
        ]
    )


def outcome_table(worlds: Sequence[str], name: str) -> Table:
    """Return what each arm ended with, against GRPO and against the rival."""
    rows = []
    for world in worlds:
        arms = with_rule(world)
        for arm, runs in arms.items():
            if not runs:
                continue
            right, total = map(
                sum, zip(*(counts(world, run) for run in runs.values()), strict=True)
            )
            row = [title(world), arm, str(len(runs)), f"{100 * right / total:.1f}"]
            for other in ("grpo", "rival"):
                shared = set(runs) & set(arms.get(other, {}))
                if arm == other or not shared:
                    row.append("")
                    continue
                found = against(world, runs, arms[other])
                verdict = "" if math.isnan(found.p) else f", {found.verdict}"
                row.append(("0" if not found.mean else interval(found)) + verdict)
            rows.append(row)
    header = ["World", "Arm", "Seeds", "Pass@1, %", "Against GRPO, log-odds", "Against the rival"]
    return Table(name, header, rows)


def decision_table() -> Table:
    """Return what probe and pilot said of MINER, by world and target."""
    rows = []
    for world in (*SMALL_WORLDS, *REAL_WORLDS):
        levels = REAL_LEVELS if is_real(world) else SMALL_LEVELS
        own = [("target", levels.__contains__)]
        if not is_real(world):
            own.append(("like", lambda level: level not in SMALL_LEVELS))
        for target, is_of_target in own:
            probes, pilots = probed(world, target), piloted(world, is_of_target)
            if not probes:
                continue
            seeds = set(probes) & set(pilots)
            both = sum((probes[seed], pilots[seed]) == ("up", "for") for seed in seeds)
            words = (
                Counter(WORDS[word] for word in probes.values()),
                Counter(pilots.values()),
            )
            cells = ["/".join(str(by[word]) for word in WORDS.values()) for by in words]
            asked = "beyond the training" if target == "target" else "like the training's (control)"
            rows.append([title(world), asked, *cells, f"{both} of {len(seeds)}"])
    header = ["World", "Target", "Probe: for/against/cannot tell", "Pilot: for/against/cannot tell",
              "Both for"]  # fmt: skip
    return Table("What probe and pilot say of MINER on fresh seeds", header, rows)


def steering_table() -> Table:
    """Return which methods the steered trainings took."""
    rows = []
    for world in SMALL_WORLDS:
        lines = [line for line in read_lines("steered") if line["name"] == world]
        for arms, number in Counter(tuple(line["arms"]) for line in lines).most_common():
            rows.append([world, str(number), ", ".join(arms)])
    return Table("What the steered trainings took, 50 steps each", ["World", "Seeds", "Arms"], rows)


def tables() -> list[Table]:
    """Return all of them."""
    return [
        decision_table(),
        outcome_table(SMALL_WORLDS, "The rule on fresh seeds"),
        steering_table(),
        outcome_table(REAL_WORLDS, "The rule in the real model"),
    ]
