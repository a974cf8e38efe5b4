"""The fresh trainings of protocol.md, "A rule" and "Steering"; what is finished is skipped.

    python recipes/probe/rule.py 41 42 43     # results/rule_*, results/steered.jsonl

In the root of a clone. What the trainings write is in runs/probe/rule.
"""

import gzip
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from run import FORKS, LARGE, MIRROR, RESULTS, ROOT, RUNS, command, keep, probe, write_rows

from trl_miner.data.worlds import WORLDS
from trl_miner.runs.history import read_run
from trl_miner.runs.runs_file import read_runs, write_runs

WORLD_NAMES = {"forks": FORKS, "mirror": MIRROR}
TARGET_LEVELS, TRAINED_LEVELS = (2, 3, 4), (0, 1)
PROBLEMS = 48
STEPS, SEGMENT = 250, 50
COPIES = 25  # of each target problem among the rival's prompts: a quarter of 4,800


def problems(world: str, levels: tuple[int, ...], seed: int) -> list[dict[str, Any]]:
    """Return problems that neither the training nor the test set of a world has."""
    module = WORLDS[WORLD_NAMES[world]]
    taken = {*module.load_dataset("train")["prompt"], *module.load_dataset("test")["prompt"]}
    rng = random.Random(f"rule {seed} {levels}")
    rows: list[dict[str, Any]] = []
    while len(rows) < PROBLEMS:
        level = levels[len(rows) % len(levels)]
        problem = module.draw("train", level, rng)
        if problem.prompt not in taken:
            taken.add(problem.prompt)
            row = {"prompt": problem.prompt, "solution": problem.answer, "level": level}
            rows.append(row)
    return rows


def data_of(world: str, seed: int) -> Path:
    """Return a folder with the rival's data, and with targets in the place of a test set."""
    folder = RUNS / "rule" / f"{world}-{seed}" / "data"
    if (folder / "rival" / "test.jsonl").is_file():
        return folder
    module = WORLDS[WORLD_NAMES[world]]
    train, test = ([*module.load_dataset(split)] for split in ("train", "test"))
    target, like = (problems(world, levels, seed) for levels in (TARGET_LEVELS, TRAINED_LEVELS))
    for name, asked in (("target", target), ("like", like), ("both", target + like)):
        write_rows(folder / name / "train.jsonl", train)
        write_rows(folder / name / "test.jsonl", asked)
    others = random.Random(f"rival {seed}").sample(train, len(train) - COPIES * len(target))
    write_rows(folder / "rival" / "train.jsonl", others + target * COPIES)
    write_rows(folder / "rival" / "test.jsonl", test)
    return folder


def recipe_of(arm: str, folder: Path) -> Path:
    """Write an arm's recipe: those of the forks study, and two of their kin."""
    base = {"grpo": "grpo_2e-4", "rival": "grpo_2e-4"}.get(arm, "miner_5")
    settings = yaml.safe_load((ROOT / "recipes" / "forks" / f"{base}.yaml").read_text())
    if arm == "certainty_5":
        settings["miner_intrinsic"] = "certainty"
    path = folder / "recipes" / f"{arm}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(settings))
    return path


def ask(world: str, seed: int, model: str, target: str, name: str) -> str:
    """Probe MINER at a model against a target, and return the verdict."""
    folder = RUNS / "rule" / f"{world}-{seed}"
    own = ["--model_name_or_path", model, "--dataset_name", str(data_of(world, seed) / target)]
    words = ["--methods", "entropy", "certainty", "--seed", str(seed), *LARGE, *own]
    found = probe(f"rule/{world}-{seed}/probes/{name}", recipe_of("miner_5", folder), *words)
    line = {"name": f"{world}, {target}, {name}", "seed": seed, **found}
    keep(RESULTS / "rule_probes.jsonl", [line])
    return str(found["methods"]["miner (the recipe's)"]["target"]["verdict"])


def pilot(world: str, seed: int) -> None:
    """Train a fifth of the steps with GRPO and with MINER, and score both kinds of target."""
    folder = RUNS / "rule" / f"{world}-{seed}"
    output = folder / "pilot"
    if not (output / "pilot.json").is_file():
        words = ["trl_miner.cli", "compare", recipe_of("miner_5", folder), "--pilot", "0.2"]
        words += ["--methods", "grpo", "miner", "--seeds", f"{seed}-{seed}", "--output", output]
        words += ["--model_name_or_path", WORLD_NAMES[world], "--score_steps", "0"]
        data = data_of(world, seed) / "both"
        command(*words, "--dataset_name", data, "--held_out", str(2 * PROBLEMS))
    keep_runs(f"rule_pilots_{world}", output)


def trained(world: str, seed: int, arm: str, *, start: str | Path = "", step: int = 0) -> Path:
    """Train an arm, unless it has been trained, and return its folder; of a steered training, the
    steps from `step` on, from the weights of the checkpoint there."""
    name = f"steered-from-{step}" if step else arm
    output = RUNS / "rule" / f"{world}-{seed}" / "arms" / name / f"seed{seed}"
    if not (output / "trainer_state.json").is_file():
        data = str(data_of(world, seed) / "rival") if arm == "rival" else WORLD_NAMES[world]
        words = ["trl_miner.cli", "train", "--config", recipe_of(arm, output.parents[2])]
        words += ["--output_dir", output, "--dataset_name", data, "--score_steps", "0"]
        words += ["--model_name_or_path", start or WORLD_NAMES[world]]
        words += ["--seed", str(seed + 1000 * step), "--max_steps", str(STEPS - step)]
        words += ["--save_strategy", "steps", "--save_steps", str(SEGMENT)]
        command(*words, "--overwrite_output_dir", "true")
    return output


def steered(world: str, seed: int) -> None:
    """Follow the probe from checkpoint to checkpoint."""
    arms = {"up": "miner_5", "down": "certainty_5", "cannot tell": "grpo"}
    taken = [arms[ask(world, seed, WORLD_NAMES[world], "target", "start")]]
    run, began = trained(world, seed, taken[0]), 0
    for step in range(SEGMENT, STEPS, SEGMENT):
        here = run / f"checkpoint-{step - began}"
        taken.append(arms[ask(world, seed, str(here), "target", f"steered, step {step}")])
        if taken[-1] != taken[-2]:
            run, began = trained(world, seed, taken[-1], start=here, step=step), step
    line = {"name": world, "seed": seed, "arms": taken, "run": run.parent.name}
    keep(RESULTS / "steered.jsonl", [line])


def keep_runs(name: str, folder: Path) -> None:
    """Put a folder's runs, ARM/seedN, into a file of results, in the place of those with the same
    name."""
    path = RESULTS / f"{name}.jsonl.gz"
    by_name = {run.name: run for run in (read_runs(path) if path.is_file() else [])}
    for state in folder.glob("*/seed*/trainer_state.json"):
        run = replace(read_run(state.parent), name="/".join(state.parent.parts[-2:]))
        by_name[run.name] = run
    lines = folder / "runs.jsonl"
    write_runs([by_name[key] for key in sorted(by_name)], lines)
    path.write_bytes(gzip.compress(lines.read_bytes(), mtime=0))


def main() -> None:
    for seed in map(int, sys.argv[1:]):
        for world in WORLD_NAMES:
            for target in ("target", "like"):
                ask(
                    world,
                    seed,
                    WORLD_NAMES[world],
                    target,
                    "start" if target == "target" else target,
                )
            pilot(world, seed)
            for arm in ("grpo", "miner_5", "rival", *["certainty_5"] * (world == "mirror")):
                trained(world, seed, arm)
            steered(world, seed)
            keep_runs(f"rule_{world}", RUNS / "rule" / f"{world}-{seed}" / "arms")


if __name__ == "__main__":
    main()
