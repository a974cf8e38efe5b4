"""What whole runs cost until they score as well as GRPO's best: GRPO, DAPO and MINER, with and
without selection.

    python tests/bench/whole_run.py --world arithmetic --output runs/whole_run/arithmetic [--write]
    python tests/bench/whole_run.py --world strategies --methods grpo dapo miner --selections none
    --seeds 5 python tests/bench/whole_run.py --world arithmetic --read

`trl-miner compare` trains the recipes of `recipes/arithmetic` or `recipes/study`, all methods of a
seed before the next seed. Stopped, the same command goes on; finished runs are kept. --read makes
the table from the raw results beside it, which `trl-miner report` draws too.

Seconds are those that the training process has spent on a processor within its optimizer steps,
generation included and scoring left out: another program on the machine hardly changes them.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from common import machine, report, table
from transformers import TrainerCallback, trainer

from trl_miner import compare
from trl_miner.data.worlds import WORLDS
from trl_miner.launching import local
from trl_miner.launching.guard import end_as
from trl_miner.runs.history import RunHistory
from trl_miner.runs.runs_file import NAME, read_runs

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results"
# Of each world: the folder of its recipes, the generation batches of a run, those from one scoring
# to the next, and the training problems: so few that a run passes over them 5 or 6 times, as a
# prompt must come back to be passed over.
RUNS = {"arithmetic": ("arithmetic", 60, 4, 160), "strategies": ("study", 60, 4, 96)}
# Recipes, and the two halves of DAPO: dynamic sampling without its many updates, and these without
# it.
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "grpo": ("grpo", {}),
    "dapo": ("dapo", {}),
    "miner": ("miner", {}),
    "grpo_dynamic": ("grpo", {"dynamic_sampling": True}),
    "dapo_static": ("dapo", {"dynamic_sampling": False}),
}
HALVES = ("grpo_dynamic", "dapo_static")
SELECTIONS = ("none", "greso", "thompson", "rounds")
TOKENS, CPU_SECONDS = "rollouts/tokens_total", "rollouts/cpu_seconds_total"
UNITS = {"rollouts/generated_total": "rollouts", TOKENS: "tokens", CPU_SECONDS: "CPU seconds"}
SHARES = {"GRPO's best": 1.0, "95 % of it": 0.95}


class CpuSeconds(TrainerCallback):
    """Logs what the process has spent within optimizer steps."""

    def __init__(self) -> None:
        self._total = self._start = 0.0

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self._start = time.process_time()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self._total += time.process_time() - self._start

    def on_log(self, args: Any, state: Any, *rest: Any, **kwargs: Any) -> None:
        state.log_history[-1][CPU_SECONDS] = self._total


def write_arms(
    world: str, num_batches: int, methods: Sequence[str], selections: Sequence[str], output: Path
) -> list[Path]:
    """Write the problems and the recipes that are compared, and return the paths of the recipes."""
    folder, _, between, num_problems = RUNS[world]
    problems, paths = output / f"problems_{num_problems}", []
    for split, size in (("train", num_problems), ("test", None)):
        path = problems / f"{split}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        WORLDS[f"trl_miner/{world}"].load_dataset(split, size=size).to_json(path)
    for method in methods:
        name, changes = METHODS[method]
        for selection in selections if method not in HALVES else {"none"}.intersection(selections):
            recipe = (
                yaml.safe_load((ROOT / "recipes" / folder / f"{name}.yaml").read_text()) | changes
            )
            per_batch = recipe.get("steps_per_generation", 1)
            recipe |= dict(
                max_steps=num_batches * per_batch, score_steps=between * per_batch, logging_steps=between * per_batch,
                held_out=160, score_samples=4, log_token_credit=0, dataset_name=str(problems.resolve()),
            )  # fmt: skip
            recipe.pop("score_final_samples", None)
            if selection == "rounds":
                if method == "dapo":  # which samples by itself
                    continue
                recipe["adaptive_sampling_rounds"] = 4
            elif selection != "none":
                recipe["prompt_selection"] = selection
            paths.append(
                output
                / "recipes"
                / f"{method if selection == 'none' else f'{method}_{selection}'}.yaml"
            )
            paths[-1].parent.mkdir(parents=True, exist_ok=True)
            paths[-1].write_text(yaml.safe_dump(recipe))
    return paths


def curve(runs: Sequence[RunHistory], unit: str) -> tuple[list[float], list[float]]:
    """Return what runs had spent at each scoring, and their mean Pass@1 there."""
    steps = sorted(set.intersection(*(set(run.scores) for run in runs)))
    scores = [float(np.mean([run.scores[step]["pass@1"] for run in runs])) for step in steps]
    logged = [np.array([(0.0, 0.0), *run.values(unit)]).T for run in runs]
    return [
        float(np.mean([np.interp(step, *of_run) for of_run in logged])) for step in steps
    ], scores


def score_at(runs: Sequence[RunHistory], unit: str, budget: float) -> float | None:
    """Return the mean Pass@1 of runs when they had spent a budget, linear between scorings; None:
    they spent less."""
    spent, scores = curve(runs, unit)
    return None if spent[-1] < budget else float(np.interp(budget, spent, scores))


def cost(runs: Sequence[RunHistory], unit: str, wanted: float) -> float | None:
    """Return what runs had spent when their mean Pass@1 first was `wanted`, linear between
    scorings; None: never."""
    spent, scores = curve(runs, unit)
    reached = next((i for i, score in enumerate(scores) if score >= wanted - 1e-9), None)
    if not reached:  # never, or before the training
        return None if reached is None else 0.0
    return float(
        np.interp(wanted, scores[reached - 1 : reached + 1], spent[reached - 1 : reached + 1])
    )


def best(runs: Sequence[RunHistory]) -> float:
    """Return the highest mean Pass@1 of the runs at a scoring after the first."""
    steps = set.intersection(*(set(run.scores) for run in runs)) - {0}
    return max(float(np.mean([run.scores[step]["pass@1"] for run in runs])) for step in steps)


def by_arm(runs: Sequence[RunHistory]) -> dict[str, dict[int, RunHistory]]:
    """Return the finished runs by method and seed, of the seeds that every method has."""
    found: dict[str, dict[int, RunHistory]] = {}
    for run in runs:
        if run.finished and run.scores:
            found.setdefault(str(run.method), {})[int(run.seed or 0)] = run
    paired = set.intersection(*(set(of_arm) for of_arm in found.values()))
    return {arm: {seed: of_arm[seed] for seed in sorted(paired)} for arm, of_arm in found.items()}


def leaving_out_each(
    seeds: Sequence[int], value: Callable[[Sequence[int]], float | None], digits: int = 2
) -> str:
    """Return a value over all seeds, and its range over leaving out one seed."""
    of_all = value(seeds)
    if of_all is None:
        return "not reached"
    if len(seeds) < 3:
        return f"{of_all:.{digits}f}"
    others = [value([seed for seed in seeds if seed != left_out]) for left_out in seeds]
    low, high = (
        min(f for f in others if f is not None),
        max(np.inf if f is None else f for f in others),
    )
    return (
        f"{of_all:.{digits}f} ({low:.{digits}f} to"
        f" {'never' if np.isinf(high) else f'{high:.{digits}f}'})"
    )


def budget_table(runs: Sequence[RunHistory]) -> str:
    """Return the table of Pass@1 at the end of each arm, and where it had spent what GRPO has at
    its end."""
    arms = by_arm(runs)
    seeds = list(arms["grpo"])

    def score(chosen: Sequence[int], arm: str, unit: str, of: str) -> float | None:
        budget = curve([arms[of][seed] for seed in chosen], unit)[0][-1]
        return score_at([arms[arm][seed] for seed in chosen], unit, budget)

    rows = []
    for name in arms:
        cells = []
        for unit, of in ((TOKENS, name), (TOKENS, "grpo"), (CPU_SECONDS, "grpo")):
            of_column = partial(score, arm=name, unit=unit, of=of)
            cells.append(
                "" if of_column(seeds) is None else leaving_out_each(seeds, of_column, digits=3)
            )
        rows.append([name, *cells])
    return table(["recipe", "Pass@1 at the end", "at GRPO's tokens", "at GRPO's CPU seconds"], rows)


def whole_run_table(runs: Sequence[RunHistory], share: float) -> str:
    """Return one table: what every arm spends until its mean Pass@1 is that share of GRPO's
    best."""
    arms = by_arm(runs)
    seeds = list(arms["grpo"])
    rows = []
    for name in arms:
        cells = []
        for unit in UNITS:

            def spent(chosen: Sequence[int], arm: str, unit: str = unit) -> float | None:
                wanted = share * best([arms["grpo"][seed] for seed in chosen])
                return cost([arms[arm][seed] for seed in chosen], unit, wanted)

            def ratio(chosen: Sequence[int], arm: str = name) -> float | None:
                own, grpo = spent(chosen, arm), spent(chosen, "grpo")
                return None if own is None else own / grpo if grpo else None

            own = spent(seeds, name)
            cells += ["" if own is None else f"{own:,.0f}", leaving_out_each(seeds, ratio)]
        rows.append([name, *cells])
    header = [word for unit in UNITS.values() for word in (unit, "of GRPO's")]
    return table(["recipe", *header], rows)


def show(world: str, runs: Sequence[RunHistory], measured: str) -> str:
    """Return the page of a world; `measured` says on what machine."""
    folder, _, between, num_problems = RUNS[world]
    arms = by_arm(runs)
    grpo = list(arms["grpo"].values())
    num_batches = grpo[0].steps
    seeds = ", ".join(map(str, arms["grpo"]))
    about = (
        f"`recipes/{folder}` on {num_problems} problems of the world `trl_miner/{world}`:"
        f" {num_batches} generation batches a run, scored every {between} on 160 held-out problems"
        f" with 4 samples each. Seeds {seeds}, the same for all. What is told is how much a method"
        " had spent when the mean Pass@1 over its seeds first was there, linear between two"
        " scorings, and the ratio to GRPO's with its range over leaving out one seed. CPU seconds"
        " are those of the training, generation included, scoring left out."
    )
    text = f"# Whole runs in the world {world}\n\n{about}\n\n{measured}"
    for name, share in SHARES.items():
        text += (
            f"\n\n## To {name}: Pass@1 of"
            f" {share * best(grpo):.3f}\n\n{whole_run_table(runs, share)}"
        )
    return (
        f"{text}\n\n## At an equal budget\n\nBlank: the runs ended with less than"
        f" that.\n\n{budget_table(runs)}"
    )


def main() -> int:
    names = [name.rpartition("/")[2] for name in WORLDS if name.rpartition("/")[2] in RUNS]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--world", choices=names, required=True, help="the embedded world")
    parser.add_argument(
        "--methods", nargs="+", default=METHODS, choices=METHODS, help="default: all"
    )
    parser.add_argument(
        "--selections", nargs="+", default=SELECTIONS, choices=SELECTIONS, help="default: all"
    )
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds")
    parser.add_argument("--batches", type=int, help="generation batches of a run (default: 60)")
    parser.add_argument(
        "--output", type=Path, help="where the runs are (default: runs/whole_run/WORLD)"
    )
    parser.add_argument(
        "--read", action="store_true", help="train nothing: read the raw results beside the table"
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help="write the table and raw results to tests/bench/results",
    )
    options = parser.parse_args()
    raw = RESULTS / f"whole_run_{options.world}.jsonl"
    if options.read:
        print(show(options.world, read_runs(raw), f"From {raw.name}."))
        return 0
    output = options.output or Path("runs/whole_run") / options.world
    os.environ["OMP_NUM_THREADS"] = "1"
    compare.STARTER = (sys.executable, __file__, "--train")
    batches = options.batches or RUNS[options.world][1]
    paths = write_arms(options.world, batches, options.methods, options.selections, output)
    for seeds in range(1, options.seeds + 1):
        if code := compare.compare(paths, seeds=seeds, output=output):
            return code
        if options.write:
            raw.write_bytes((output / NAME).read_bytes())
        report(
            f"whole_run_{options.world}", show(options.world, read_runs(output / NAME), machine())
        )
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        trainer.DEFAULT_CALLBACKS.append(CpuSeconds)
        sys.exit(end_as(local.main(sys.argv[2:])))
    sys.exit(main())
