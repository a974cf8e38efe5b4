"""A pilot: a part of a training, once with GRPO and once with each method at a dose that shows.

All arms of a seed have the start, the prompts and, when they are scored, the random numbers in
common. So a difference on the target problems shows after a fifth of the steps.

# S seeds, P target problems
"""

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .common.tables import Table
from .compare import compare
from .data_recipe.text import recipe_text
from .recipe.files import find_recipe
from .runs.files import read_yaml, write_json, write_whole
from .runs.held_out import TRAINED, HeldOut, read_held_out
from .viewing.effects import Effect, crossed_difference

BASELINE = "grpo"
DOSE = 0.05  # share of the gradient; under MINER's cap nothing shows in so few steps
SAMPLES = 16  # of each target problem at the end, where the recipe does not say how many
EPOCHS = 3  # where a recipe says neither steps nor epochs: the default of transformers
_METHOD = ("advantage_estimator", "all_right", "all_wrong")
# what a pilot is too short for, or should not do
_LEFT_OUT = ("keep_best", "early_stop", "push_to_hub")


@dataclass(frozen=True)
class Verdict:
    """What a pilot says of a method.

    Attributes:
        effect: Pass@1 on the target problems with the method, less GRPO's.
        means: Both.
        is_like_training: Whether the target is no other than the training's problems, so that it
            cannot show what a method does beyond them.
    """

    effect: Effect
    means: tuple[float, float]
    is_like_training: bool

    @property
    def word(self) -> str:
        """ "for", "against" or "cannot tell"."""
        if self.is_like_training or self.effect.low <= 0 <= self.effect.high:
            return "cannot tell"
        return "for" if self.effect.low > 0 else "against"


def pilot(
    recipe: str | Path,
    share: float,
    *,
    methods: Sequence[str] = (),
    seeds: int | Sequence[int] = 1,
    output: str | Path,
    options: Sequence[str] = (),
    jobs: int = 1,
) -> int:
    """Train a part of a recipe's steps with GRPO and with other methods, and say which ended higher
    on the target problems. Writes `pilot.json` beside what `compare` writes.

    The target is what the recipe holds out, of problems with levels those beyond the training's.
    `dose_share` among the options is the dose of the methods; by default `DOSE`.

    Args:
        recipe: The recipe.
        share: Of its steps, above 0 and at most 1.
        methods: Names of estimators; by default the recipe's own, or "miner" where it has GRPO.
        seeds, output, options, jobs: As for `compare`.

    Returns:
        The exit code, that of `compare`.

    Raises:
        ValueError: The share is none, no problems are held out, or what `compare` raises.
    """
    if not 0 < share <= 1:
        raise ValueError(f"--pilot must be above 0 and at most 1: got {share:g}. Try 0.2.")
    base = read_yaml(find_recipe(recipe))
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name, kind in (("dose_share", float), ("max_steps", int), ("num_train_epochs", float)):
        parser.add_argument(f"--{name}", f"--{name.replace('_', '-')}", type=kind)
    parser.add_argument("--held_out", "--held-out")
    given, options = parser.parse_known_args(options)
    base |= {name: value for name, value in vars(given).items() if value is not None}
    if str(base.get("held_out") or 0) == "0":
        raise ValueError(
            "A pilot needs problems that matter: the recipe holds out none. Name some that are not"
            " trained, with --held_out NAME=PATH or a benchmark, --held_out aime24."
        )
    arms = _arms(base, methods, DOSE if given.dose_share is None else given.dose_share)
    folder = Path(output)
    paths = [folder / "recipes" / f"{name}.yaml" for name in arms]
    paths[0].parent.mkdir(parents=True, exist_ok=True)
    for path, settings in zip(paths, arms.values(), strict=True):
        write_whole(path, recipe_text(path.stem, settings | _steps(base, share), {}))
    code = compare(paths, seeds=seeds, output=folder, options=options, jobs=jobs)
    if code == 0:
        numbers = range(1, seeds + 1) if isinstance(seeds, int) else seeds
        is_named = not str(base["held_out"]).replace(".", "", 1).isdecimal()
        _conclude(folder, [*arms], numbers, is_named)
    return code


def _arms(base: Mapping[str, Any], methods: Sequence[str], dose: float) -> dict[str, Any]:
    """Return the settings of each arm by its name, GRPO's first."""
    from .methods.compose import find_composition

    ways = {name: {_METHOD[0]: name} for name in methods if name != BASELINE}
    if not ways:  # the recipe's own; without a setting it is MINER
        way = {_METHOD[0]: "miner"} | {key: base[key] for key in _METHOD if key in base}
        names = [method.name for method in find_composition(*map(way.get, _METHOD)).methods]
        ways = {"miner": {_METHOD[0]: "miner"}} if names == [BASELINE] else {"_".join(names): way}
    left_out = (*_METHOD, "dose_share", *_LEFT_OUT)
    common = {key: value for key, value in base.items() if key not in left_out}
    common.setdefault("score_final_samples", SAMPLES)
    arms = {BASELINE: common | {_METHOD[0]: BASELINE}}
    for name, way in ways.items():
        is_dosed = find_composition(*map(way.get, _METHOD)).dosed
        arms[name] = common | way | ({"dose_share": dose} if is_dosed else {})
    return arms


def _steps(base: Mapping[str, Any], share: float) -> dict[str, Any]:
    """Return the setting for a part of the recipe's steps."""
    if (steps := base.get("max_steps") or 0) > 0:
        return {"max_steps": max(1, round(share * steps))}
    return {"num_train_epochs": share * (base.get("num_train_epochs") or EPOCHS)}


def judge(first: Sequence[HeldOut], second: Sequence[HeldOut], is_named: bool) -> Verdict:
    """Compare a method with GRPO on the target problems.

    Args:
        first: What its runs scored after the training, by seed.
        second: What GRPO's did, with the same seeds.
        is_named: Whether the target was named, of other problems than the training's, and not
            split off from those.
    """
    levels, trained = first[0].levels, first[0].trained_levels
    places = [*range(len(first[0].moments["after"].num_correct))]
    is_like_training = not is_named
    if levels is not None and trained is not None:
        beyond = [place for place in places if levels[place] not in trained]
        is_like_training, places = not beyond, beyond or places
    shares_SP = [
        [
            [moment.num_correct[place] / max(1, moment.num_verdicts[place]) for place in places]
            for moment in (held_out.moments["after"] for held_out in several)
        ]
        for several in (first, second)
    ]
    means = tuple(sum(map(sum, rows)) / (len(rows) * len(places)) for rows in shares_SP)
    return Verdict(crossed_difference(*shares_SP), (means[0], means[1]), is_like_training)


def _conclude(folder: Path, arms: Sequence[str], seeds: Sequence[int], is_named: bool) -> None:
    """Judge each method, write `pilot.json` and print the table and what to do."""
    scored: dict[str, list[HeldOut]] = {arm: [] for arm in arms}
    for arm in arms:
        for seed in seeds:
            held_out = read_held_out(folder / arm / f"seed{seed}")
            assert held_out is not None  # `compare` has succeeded
            scored[arm].append(held_out)
    is_other = is_named and not _is_trained(folder / BASELINE / f"seed{seeds[0]}" / "log.txt")
    verdicts = {arm: judge(scored[arm], scored[BASELINE], is_other) for arm in arms[1:]}
    records = {
        arm: asdict(verdict) | {"verdict": verdict.word} for arm, verdict in verdicts.items()
    }
    write_json(folder / "pilot.json", records)
    print("\n" + pilot_text(verdicts))


def _is_trained(log: Path) -> bool:
    """Return whether at least half of the target problems are trained, as a run's log says."""
    told = re.search(rf"(\d+) of (\d+) {TRAINED}", log.read_text("utf-8", "replace"))
    return told is not None and 2 * int(told[1]) >= int(told[2])


def pilot_text(verdicts: Mapping[str, Verdict]) -> str:
    """Return the table of a pilot, and a line for each method that says what to do."""
    rows, lines = [], []
    for name, verdict in verdicts.items():
        effect = verdict.effect
        shown = (100 * value for value in (effect.difference, effect.low, effect.high))
        difference = "{:+.1f} ({:+.1f} to {:+.1f})".format(*shown)
        means = [f"{100 * value:.1f}" for value in verdict.means]
        rows.append([name, *means, difference, verdict.word])
        lines.append(f"To do: {_advice(name, verdict)}")
    some = next(iter(verdicts.values())).effect
    notes = [
        f"Pass@1 on {some.num_problems} target problems, in percent; differences with 95 %"
        " intervals over the problems" + (" and the seeds." if some.num_seeds > 1 else " alone."),
        *["One seed: another may come out otherwise. --seeds 3 says so."] * (some.num_seeds == 1),
    ]
    table = Table("Pilot", ["Method", "Pass@1", "GRPO's", "Difference", "Verdict"], rows, notes)
    return "\n".join([table.markdown(), *lines])


def _advice(name: str, verdict: Verdict) -> str:
    if verdict.is_like_training:
        return (
            f"name other target problems, with --held_out NAME=PATH. These are like the training's,"
            f" on which {name} shows nothing of what it does beyond them."
        )
    if verdict.word == "cannot tell":
        return (
            f"take more target problems or --seeds 3, or leave {name} off. The pilot cannot tell"
            " whether it helps."
        )
    if verdict.word == "for":
        return f"train with {name}. The target problems speak for it."
    return f"leave {name} off (advantage_estimator: grpo). The target problems speak against it."
