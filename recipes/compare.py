"""Train several recipes with several seeds, and compare their held-out scores with the first one's.

    python recipes/compare.py arithmetic/grpo arithmetic/miner --seeds 3 --output runs/compare \\
      --max_steps 60

Other options go to every training. Runs that have ended are kept: call it again to go on, after you
have deleted the folder of one that was interrupted. The table has each recipe's Pass@1 before and
after, and the difference from the first recipe, paired by seed: a mean, Student's 95 % interval, and
p, which Holm adjusts for the number of recipes.
"""

import argparse
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from trl_miner.evaluation.held_out import read_held_out


def train(recipe: str, seed: int, folder: Path, more: list[str]) -> tuple[float, float, str]:
    """Train a recipe with a seed, unless that run has ended, and return its Pass@1 before and
    after, and a hash of the problems that it was scored on."""
    if "after" not in read_held_out(folder):
        words = ["trl-miner", "train", recipe, f"--seed={seed}", f"--output_dir={folder}", *more]
        if subprocess.run(words).returncode:
            raise SystemExit(f"The training of {recipe} with seed {seed} failed: see above.")
    moments = read_held_out(folder)
    if "after" not in moments:
        raise SystemExit(f"{folder} has no scores. Add --held_out 200.")
    before, after = (moments[when].scores["pass@1"] for when in ("before", "after"))
    return before, after, moments["after"].problems


def table(scores: dict[str, list[tuple[float, float, str]]]) -> pd.DataFrame:
    """Return the comparison, a row per recipe, of its scores by seed. The first is the baseline."""
    if len({problems for runs in scores.values() for *_, problems in runs}) > 1:
        raise SystemExit("The runs were scored on different problems, and cannot be compared.")
    before, after = (pd.DataFrame(scores).map(lambda run, at=at: run[at]) for at in (0, 1))
    differences = after.sub(after.iloc[:, 0], axis=0).iloc[:, 1:]  # a row per seed
    tests = stats.ttest_1samp(differences, 0)
    low, high = tests.confidence_interval()
    found = pd.DataFrame({"difference": differences.mean(), "low": low, "high": high})
    ordered = pd.Series(tests.pvalue, found.index).sort_values()
    found["p (Holm)"] = (ordered * np.arange(len(ordered), 0, -1)).cummax().clip(upper=1)
    return pd.DataFrame({"before": before.mean(), "after": after.mean()}).join(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipes", nargs="+")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("runs/compare"))
    args, more = parser.parse_known_args()
    if args.seeds < 2 or len(args.recipes) < 2:
        parser.error("give at least two recipes and two seeds")
    seeds = range(1, args.seeds + 1)
    scores = {
        recipe: [train(recipe, seed, args.output / recipe / str(seed), more) for seed in seeds]
        for recipe in args.recipes
    }
    print(table(scores).round(4).to_string(na_rep=""))


if __name__ == "__main__":
    main()
