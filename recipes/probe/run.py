"""The runs of protocol.md, in its order; what is finished is skipped.

    python recipes/probe/run.py probes          # of the small worlds; results/probes.jsonl
    python recipes/probe/run.py control         # the same against a target like the training set
    python recipes/probe/run.py more            # two more arms; strategies, whose start is made first
    python recipes/probe/run.py real MODEL      # of SmolLM2-135M-Instruct in the folder MODEL
    python recipes/probe/run.py way             # on the way of GRPO, after rule.py; results/way.jsonl

In the root of a clone. What the runs write is in runs/probe.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trl_miner.data.base_model import settings_of, train
from trl_miner.data.worlds import WORLDS
from trl_miner.runs.files import write_whole

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results"
RUNS = ROOT / "runs" / "probe"
FORKS, MIRROR = "trl_miner/forks", "trl_miner/forks_mirror"
OWN = [
    f"trl_miner.data.forks_methods.{name}"
    for name in ("f_grpo", "passk", "unlikeliness", "placebo")
]
METHODS = ["miner", "entropy", "certainty", "rl_zvp", *OWN]
LARGE = ["--prompts", "48", "--problems", "48", "--samples", "16"]
SEEDS = range(1, 6)


def command(*words: str | Path, folder: Path = ROOT) -> None:
    """Run a command of the package in a folder; raise where it fails."""
    words = (sys.executable, "-m", *words)
    print(" ".join(map(str, words[2:])), flush=True)
    more = {"PYTHONPATH": f"{folder}:{ROOT}"}
    subprocess.run([*map(str, words)], cwd=folder, env=os.environ | more, check=True)


def probe(name: str, recipe: str | Path, *options: str | Path, folder: Path = ROOT) -> Any:
    """Probe, unless it has been done, and return what it measured."""
    output = RUNS / name
    if not (output / "probe.json").is_file():
        words = ["trl_miner.cli", "probe", recipe, "--output", output, "--quiet", *options]
        command(*words, folder=folder)
    return json.loads((output / "probe.json").read_text())


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write a line of JSON for each row, and the folder where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "".join(json.dumps(row) + "\n" for row in rows))


def keep(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    """Put lines into a file of results, in the place of those with the same name and seed."""
    known = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    by_key = {(line["name"], line["seed"]): line for line in [*known, *lines]}
    ordered = [by_key[key] for key in sorted(by_key)]
    write_rows(path, ordered)


def probe_world(
    name: str, recipe: str, methods: Sequence[str], *options: str, seeds: Sequence[int] = SEEDS
) -> None:
    """Probe a small world with all seeds."""
    for seed in seeds:
        found = probe(
            f"{name}/seed{seed}",
            f"recipes/{recipe}.yaml",
            *("--methods", *methods, "--seed", str(seed), *LARGE, *options),
        )
        keep(RESULTS / "probes.jsonl", [{"name": name, "seed": seed, **found}])


def world(name: str, model: str | None = None) -> list[str]:
    """Return the settings of one of the two worlds, and of another start."""
    return ["--model_name_or_path", model or name, "--dataset_name", name]


def probes() -> None:
    """Probe the worlds whose starts come with the package."""
    for seed in SEEDS:
        for title, name in (("forks", FORKS), ("mirror", MIRROR)):
            probe_world(title, "forks/oracle", METHODS, *world(name), seeds=[seed])
    probe_world("arithmetic", "arithmetic/grpo", METHODS)


def control() -> None:
    """Probe both worlds against a target like the training set: other problems of its levels."""
    for title, name in (("forks", FORKS), ("mirror", MIRROR)):
        folder = RUNS / "data" / title
        parts = {split: WORLDS[name].load_dataset(split) for split in ("train", "test")}
        trained = {*parts["train"]["level"]}
        for split, rows in parts.items():
            write_rows(folder / f"{split}.jsonl", [row for row in rows if row["level"] in trained])
        more = ["--model_name_or_path", name, "--dataset_name", str(folder)]
        probe_world(f"{title}, control", "forks/oracle", METHODS, *more, seeds=(1, 2))


def more() -> None:
    """Probe two more arms of the first study; and strategies, whose start is made first."""
    for arm in ("uniqueness", "constant"):
        probe_world(f"forks, {arm}", f"forks/{arm}", ["entropy"], *world(FORKS))
    start = RUNS / "starts" / "strategies"
    if not (start / "tokenizer.json").is_file():
        train(settings_of("trl_miner/strategies"), start)
    probe_world("strategies", "study/grpo", METHODS, "--model_name_or_path", str(start))


def real(model: str) -> None:
    """Probe a start of the real model on arithmetic, which is made first."""
    recipe, start = ROOT / "recipes/SmolLM2-135M-Instruct/miner.yaml", RUNS / "real" / "arithmetic"
    teach(recipe, Path(model).resolve(), start, "--steps", "20")
    name, sizes = "SmolLM2-135M, arithmetic", ["--prompts", "32", "--problems", "40"]
    words = ["--methods", "entropy", "certainty", "--seed", "1", *sizes, "--samples", "8"]
    found = probe(f"real/{name}", recipe, *words, "--model_name_or_path", start)
    keep(RESULTS / "probes.jsonl", [{"name": name, "seed": 1, **found}])


def teach(
    recipe: Path, source: Path, start: Path, *options: str | Path, folder: Path = ROOT
) -> None:
    """Make a start by supervised steps, as the study of it did."""
    if not (start / "config.json").is_file():
        words = ["--config", recipe, "--model", source, "--model_name_or_path", start]
        command("trl_miner.cli", "sft", *words, *options, folder=folder)


def way() -> None:
    """Probe on the way of the GRPO trainings of rule.py."""
    for seed in (41, 42, 43):
        for title, name in (("forks", FORKS), ("mirror", MIRROR)):
            run = RUNS / "rule" / f"{title}-{seed}" / "arms" / "grpo" / f"seed{seed}"
            for step in (50, 100, 200):
                own = world(name, str(run / f"checkpoint-{step}"))
                found = probe(
                    f"way/probe-{title}-{seed}-{step}",
                    "recipes/forks/oracle.yaml",
                    *("--methods", *METHODS, "--seed", str(seed), *LARGE, *own),
                )
                line = {"name": f"{title}, step {step}", "seed": seed, **found}
                keep(RESULTS / "way.jsonl", [line])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=["probes", "control", "more", "real", "way"])
    parser.add_argument("model", nargs="?", help="for real: the folder of SmolLM2-135M-Instruct")
    args = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    real(args.model) if args.part == "real" else globals()[args.part]()
