"""The fresh trainings of protocol.md, "A rule" and "Steering"; what is finished is skipped.

    python recipes/probe/rule.py 41 42 43     # results/rule_*, results/steered.jsonl

In the root of a clone. What the trainings write is in runs/probe/rule.
"""

import gzip
import json
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import yaml
from run import FORKS, LARGE, MIRROR, RESULTS, ROOT, RUNS, command, keep, probe

from trl_miner.data.worlds import WORLDS
from trl_miner.runs.files import write_whole
from trl_miner.runs.runs_file import collect_runs, read_runs, write_runs

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


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "".join(json.dumps(row) + "\n" for row in rows))


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


def finished(world: str, seed: int, arm: str) -> Path:
    """Train an arm, unless it has been trained, and return its folder."""
    output = RUNS / "rule" / f"{world}-{seed}" / "arms" / arm / f"seed{seed}"
    if not (output / "trainer_state.json").is_file():
        train(world, seed, arm, output, *["--resume_from_checkpoint", "latest"] * output.is_dir())
    return output


def train(world: str, seed: int, arm: str, output: Path, *more: str | Path) -> None:
    """Train an arm; `more` overrides its settings."""
    data = str(data_of(world, seed) / "rival") if arm == "rival" else WORLD_NAMES[world]
    words = ["trl_miner.cli", "train", "--config", recipe_of(arm, output.parents[2])]
    words += ["--output_dir", output, "--seed", str(seed), "--dataset_name", data]
    words += ["--model_name_or_path", WORLD_NAMES[world], "--score_steps", "0"]
    command(*words, "--save_strategy", "steps", "--save_steps", str(SEGMENT), *more)


def steered(world: str, seed: int) -> None:
    """Follow the probe from checkpoint to checkpoint."""
    arms = {"up": "miner_5", "down": "certainty_5", "cannot tell": "grpo"}
    arm = arms[ask(world, seed, WORLD_NAMES[world], "target", "start")]
    source, taken = finished(world, seed, arm), [arm]
    for step in range(SEGMENT, STEPS, SEGMENT):
        here = source / f"checkpoint-{step}"
        taken.append(arms[ask(world, seed, str(here), "target", f"steered, step {step}")])
        if len({*taken}) > 1:  # from here on it is no other arm's training
            output = RUNS / "rule" / f"{world}-{seed}" / "arms" / "steered" / f"seed{seed}"
            if source != output:
                shutil.copytree(here, output / here.name, dirs_exist_ok=True)
            if not (output / f"checkpoint-{step + SEGMENT}").is_dir():
                more = ["--resume_from_checkpoint", output / here.name]
                train(world, seed, taken[-1], output, *more, "--max_steps", str(step + SEGMENT))
            source = output
    keep(RESULTS / "steered.jsonl", [{"name": world, "seed": seed, "arms": taken}])


def keep_runs(name: str, folder: Path) -> None:
    """Put a folder's runs into a file of results, in the place of those with the same name."""
    collect_runs(folder)
    path = RESULTS / f"{name}.jsonl.gz"
    runs = [*read_runs(path)] if path.is_file() else []
    by_name = {run.name: run for run in [*runs, *read_runs(folder / "runs.jsonl")]}
    lines = folder / "all.jsonl"
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
                finished(world, seed, arm)
            steered(world, seed)
            keep_runs(f"rule_{world}", RUNS / "rule" / f"{world}-{seed}" / "arms")


if __name__ == "__main__":
    main()
