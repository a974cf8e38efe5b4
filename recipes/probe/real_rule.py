"""The rule in the real model, as protocol.md has it; what is finished is skipped.

    python recipes/probe/real_rule.py MODEL starts 31 32    # starts and probes
    python recipes/probe/real_rule.py MODEL pilots 31 32    # with the pilots
    python recipes/probe/real_rule.py MODEL all 31 32       # with the trainings

In the root of a clone; MODEL is the folder of SmolLM2-135M-Instruct. Two workers may do different
seeds at once.
"""

import json
import random
import sys
from pathlib import Path
from typing import Any

import yaml
from rule import keep_runs
from run import RESULTS, ROOT, RUNS, command, keep, probe, teach, write_rows

HERE = ROOT / "recipes" / "two-procedures"
WORLDS = {"two procedures": "0.2", "two procedures, mirror": "0.8"}  # shares of worked steps
RATES = {"grpo": 5e-6, "rival": 5e-6, "miner_5": 1e-5, "entropy_5": 1e-5, "grpo_1e-5": 1e-5}
PILOT_STEPS, STEPS = 15, 60
SIZES = ["--prompts", "32", "--problems", "56", "--samples", "8"]


def folder_of(world: str, seed: int) -> Path:
    return RUNS / "real-rule" / f"{world.replace(', ', '-').replace(' ', '-')}-{seed}"


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def data_of(world: str, seed: int) -> Path:
    """Return a folder with the world's data, the target in the place of its test set, and the
    rival's data."""
    folder = folder_of(world, seed) / "data"
    if (folder / "rival" / "test.jsonl").is_file():
        return folder
    command("procedures", "--worked", WORLDS[world], "--folder", folder, folder=HERE)
    train, test = (rows_of(folder / "problems" / f"{split}.jsonl") for split in ("train", "test"))
    target = [row for row in test[::2] if row["level"] != "product"]
    write_rows(folder / "target" / "train.jsonl", train)
    write_rows(folder / "target" / "test.jsonl", target)
    copies = target * (len(train) // 4 // len(target) + 1)
    others = random.Random(f"rival {seed}").sample(train, 3 * (len(train) // 4))
    write_rows(folder / "rival" / "train.jsonl", others + copies[: len(train) // 4])
    write_rows(folder / "rival" / "test.jsonl", test)
    return folder


def recipe_of(arm: str, folder: Path, *, probed: bool = False) -> Path:
    """Write an arm's recipe: those of the study of two procedures."""
    base = {"rival": "grpo"}.get(arm, arm)
    settings = yaml.safe_load((HERE / f"{base}.yaml").read_text())
    settings["learning_rate"] = RATES[arm]
    if probed:
        settings.pop("rollout_func")  # makes the sampling faster and no other
    path = folder / "recipes" / f"{arm}{'-probed' * probed}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(settings))
    return path


def start_of(world: str, seed: int, model: Path) -> Path:
    """Teach the start of a seed, and probe it."""
    folder = folder_of(world, seed)
    data, start = data_of(world, seed), folder / "start"
    recipe = recipe_of("miner_5", folder, probed=True)
    taught = ["--dataset_name", data / "start.jsonl", "--steps", "40", "--lr", "1e-4"]
    teach(recipe, model, start, *taught, "--seed", str(seed), folder=HERE)
    words = ["--methods", "entropy", "certainty", "--seed", str(seed), *SIZES]
    words += ["--model_name_or_path", start, "--dataset_name", data / "target"]
    found = probe(f"real-rule/{folder.name}/probe", recipe, *words, folder=HERE)
    keep(
        RESULTS / "rule_probes.jsonl", [{"name": f"{world}, target, start", "seed": seed, **found}]
    )
    return start


def pilot(world: str, seed: int, start: Path) -> None:
    """Train a quarter of the steps with GRPO and with MINER, and score the target."""
    output = folder_of(world, seed) / "pilot"
    if not (output / "pilot.json").is_file():
        recipe = recipe_of("miner_5", folder_of(world, seed))
        words = ["trl_miner.cli", "compare", recipe, "--methods", "grpo", "miner"]
        words += ["--pilot", str(PILOT_STEPS / STEPS), "--seeds", f"{seed}-{seed}"]
        data = data_of(world, seed) / "target"
        words += ["--output", output, "--model_name_or_path", start, "--dataset_name", data]
        command(*words, "--held_out", "56", folder=HERE)
    keep_runs(f"rule_pilots_{folder_of(world, 0).name[:-2]}", output)


def train(world: str, seed: int, arm: str, start: Path) -> None:
    """Train an arm, unless it has been trained."""
    folder = folder_of(world, seed)
    output = folder / "arms" / arm / f"seed{seed}"
    if not (output / "trainer_state.json").is_file():
        data = data_of(world, seed) / ("rival" if arm == "rival" else "problems")
        words = ["trl_miner.cli", "train", "--config", recipe_of(arm, folder), "--seed", str(seed)]
        words += ["--model_name_or_path", start, "--dataset_name", data, "--output_dir", output]
        command(*words, "--overwrite_output_dir", "true", folder=HERE)
        for weights in output.glob("*.safetensors"):
            weights.unlink()  # 540 MB
    keep_runs(f"rule_{folder_of(world, 0).name[:-2]}", folder / "arms")


def main() -> None:
    model, until, *seeds = sys.argv[1:]
    for seed in map(int, seeds):
        for world in WORLDS:
            start = start_of(world, seed, Path(model).resolve())
            if until != "starts":
                pilot(world, seed, start)
            if until == "all":
                more = ["grpo_1e-5"] * world.endswith("mirror")
                for arm in ("grpo", "miner_5", "rival", "entropy_5", *more):
                    train(world, seed, arm, start)


if __name__ == "__main__":
    main()
