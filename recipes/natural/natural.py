"""On tasks that were not built for it, how often can one tell which way MINER pushes?

    python -m natural.natural    # in the folder above: writes the tables of natural/README.md

samples.jsonl.gz has a line per family of reasoning_gym: the samples of problems of an easy level,
which a training has, and of a harder one, the target; and of gradients, what each problem adds to
the product of a method's direction and the slope of success. trainings.jsonl.gz has a line per
training: how many of 8 samples of each target problem were correct, before, in the middle and after.
"""

import re
from os.path import commonprefix
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from analysis import holm, interval
from scipy import stats

from trl_miner.probe import FEWEST, push

HERE = Path(__file__).parent
MOMENTS = ("start", "middle", "end")
FEW = "few"  # prompts or problems with a part in a cosine
WAYS = ("MINER", "entropy bonus", "F-GRPO", "GRPO", "control", "rarer")


class Effect(NamedTuple):
    """A mean with its 95 % interval, and p of its being 0."""

    mean: float
    low: float
    high: float
    p: float

    @property
    def sign(self) -> str:
        """ "up", "down", or "?": not decided."""
        return "up" if self.low > 0 else "down" if self.high < 0 else "?"

    def __str__(self) -> str:
        return f"{self.sign} {self.mean:+.2f} ({self.low:+.2f} to {self.high:+.2f})"


def cosine(by_problem_Q: Any, by_prompt_P: Any, lengths: float) -> Any:
    """Return the cosine of a direction and the slope of success, with the interval of the package's
    probe; "few" if fewer than five prompts or problems have a part in it.

    Args:
        by_problem_Q: What each target problem adds to the product of the two.
        by_prompt_P: What each training prompt adds.
        lengths: The product of their lengths.
    """
    sides = np.array(by_problem_Q), np.array(by_prompt_P)
    fewest = min(map(np.count_nonzero, sides))
    if fewest < FEWEST:
        return FEW
    mean, low, high = push(*sides, lengths)
    t = stats.t.ppf(0.975, fewest - 1) * abs(mean) / (high - mean)
    return Effect(mean, low, high, 2 * stats.t.sf(t, fewest - 1))


def effects(record: dict[str, Any]) -> dict[str, Any]:
    """Return a family's cosines, and by "rarer" the forecast without gradients."""
    found: dict[str, Any] = {
        "family": record["family"],
        **dict.fromkeys(WAYS, "-"),
        "MINER": FEW,
    }
    if made := record["gradients"]:
        lengths = made["lengths"]
        for way, by_prompt_P in made["by prompt"].items():
            by_problem_Q = made["by problem"][way]
            found[way] = cosine(by_problem_Q, by_prompt_P, lengths[way] * lengths["success"])
        found["control"] = cosine(*made["halves"], lengths["half 0"] * lengths["half 1"])
    differences = []
    for its in record["hard"]:
        nll, is_right = np.array(its["nll"]), np.array(its["right"])
        if 0 < is_right.sum() < len(nll):
            differences.append(nll[is_right].mean() - nll[~is_right].mean())
    test = stats.ttest_1samp(differences, 0)
    found["rarer"] = Effect(np.mean(differences), *test.confidence_interval(), test.pvalue)
    return found


def of_samples(record: dict[str, Any]) -> dict[str, Any]:
    """Return what a family's samples say: how often they are correct, and how much the correct ones
    of a prompt differ."""
    easy, hard = ([np.array(one["right"]) for one in record[level]] for level in ("easy", "hard"))
    ways = [{*one["texts"]} for one in record["easy"] if all(one["right"])]
    several = [own for own in ways if len(own) > 1]
    begun = []  # the first two words after "=" of correct completions
    for one in record["easy"]:
        pairs = zip(one["texts"], one["right"], strict=True)
        begun.append(len({(*text.split()[1:3],) for text, is_right in pairs if is_right}))
    return {
        "family": record["family"],
        "easy, %": round(100 * np.mean(easy)),
        "target, %": round(100 * np.mean(hard)),
        "all right": f"{len(ways)} of {len(easy)}",
        "that differ": len(several),
        "different": f"{np.mean([len(own) for own in ways] or [0]):.1f}",
        "alike": f"{np.mean([len(commonprefix([*own])) for own in several] or [0]):.1f}",
        "beginnings": f"{sum(begun) / max(1, np.count_nonzero(begun)):.1f}",
    }


def count(way: str, found: list[Any]) -> dict[str, Any]:
    """Return in how many families a sign is decided, one by one and by Holm over all of them."""
    signs = [str(one)[0] for one in found]
    p = [getattr(one, "p", 1.0) for one in found]
    told = {
        sign: signs.count(sign[0])
        for sign in ("up", "down", "? not decided", "few", "- no gradient")
    }
    return {"": way, **told, "by Holm": sum(each < 0.05 for each in holm(p))}


def of_trainings() -> list[dict[str, Any]]:
    """Return a row per family and method: Pass@1 on the target in percent, of each seed, and the
    difference from GRPO with the same seed at the end, with its interval over seeds."""
    runs = pd.read_json(HERE / "trainings.jsonl.gz", lines=True)
    for moment in MOMENTS:
        runs[moment] = 100 * runs[moment].map(np.mean) / runs["samples"]
    grpo = runs[runs["method"] == "GRPO"]
    ends = runs.merge(grpo, on=["family", "seed"], suffixes=("", " of GRPO"))
    ends["points"] = ends["end"] - ends["end of GRPO"]
    rows = []
    for (family, method), own in ends.groupby(["family", "method"], sort=False):
        scores = {moment: ", ".join(f"{one:.1f}" for one in own[moment]) for moment in MOMENTS}
        points = "" if method == "GRPO" else interval(own["points"], 1)
        rows.append({"family": family, "method": method, **scores, "points": points})
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Return rows as a table in Markdown."""
    lines = [rows[0], ["---"] * len(rows[0]), *(row.values() for row in rows)]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def tables() -> dict[str, str]:
    """Return README.md's tables by name."""
    records = pd.read_json(HERE / "samples.jsonl.gz", lines=True).to_dict("records")
    found = [effects(one) for one in records if one["gradients"] is not None]
    return {
        "samples": table([*map(of_samples, records)]),
        "signs": table(found),
        "counts": table([count(way, [one[way] for one in found]) for way in WAYS]),
        "trainings": table(of_trainings()),
    }


def main() -> None:
    """Write the tables into the page, between `<!-- table: NAME -->` and `<!-- end -->`."""
    path, made = HERE / "README.md", tables()
    marks = r"(?s)(<!-- table: (.*?) -->\n).*?(<!-- end -->)"
    text = re.sub(marks, lambda at: at[1] + made[at[2]] + at[3], path.read_text("utf-8"))
    path.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
