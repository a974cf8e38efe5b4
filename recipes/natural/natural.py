"""On tasks that were not built for it, how often can one tell which way MINER pushes?

    python natural.py    # writes the tables of README.md, from samples.jsonl.gz

That file has a line per family of reasoning_gym: the samples of problems of an easy level, which a
training would have, and of a harder one, the target; and products of gradients. A name with a comma
is a check of a family, which is not counted.

# P training prompts with a direction, Q target problems with a slope
"""

import gzip
import json
import math
import re
from os.path import commonprefix
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from trl_miner.probe import push

HERE = Path(__file__).parent
WAYS = ("MINER", "entropy bonus", "F-GRPO", "GRPO", "control", "rarer")
SKETCH_ERROR = 0.005  # of a cosine, by which its interval is widened


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
        if math.isinf(self.high):
            return "few"
        return f"{self.sign} {self.mean:+.2f} ({self.low:+.2f} to {self.high:+.2f})"


FEW = Effect(0, -math.inf, math.inf, 1)  # of fewer than five prompts


def cosine(products_PQ: np.ndarray, of_way_PP: np.ndarray, of_slopes_QQ: np.ndarray) -> Effect:
    """Return the cosine of a direction and the slope of success, with the interval of the package's
    probe.

    Args:
        products_PQ: Of the prompts' parts of the direction with the problems' parts of the slope.
        of_way_PP: Of the former among themselves.
        of_slopes_QQ: Of the latter.
    """
    sides = products_PQ.sum(axis=0), products_PQ.sum(axis=1)
    mean, low, high = push(*sides, math.sqrt(of_way_PP.sum() * of_slopes_QQ.sum()))
    df = min(map(np.count_nonzero, sides)) - 1
    t = stats.t.ppf(0.975, df) * max(0, abs(mean) - SKETCH_ERROR) / (high - mean)
    p = np.nan_to_num(2 * stats.t.sf(t, df), nan=1.0)
    return Effect(mean, low - SKETCH_ERROR, high + SKETCH_ERROR, p)


def effects(record: dict[str, Any]) -> dict[str, Effect]:
    """Return a family's cosines, and by "rarer" the forecast without gradients."""
    products = {
        way: (np.array(own["with success"]), np.array(own["among themselves"]))
        for way, own in record["products"].items()
    }
    of_slopes_QQ, _ = products.pop("success")
    places = record["products"]["GRPO"]["places"]
    p_P = np.array([np.mean(record["easy"][place]["right"]) for place in places])
    own_PQ, of_way_PP = products["GRPO"]
    products["F-GRPO"] = -p_P[:, None] * own_PQ, np.outer(p_P, p_P) * of_way_PP  # -p of GRPO's
    found = {way: cosine(*own, of_slopes_QQ) for way, own in products.items()}
    one, two = of_slopes_QQ[::2], of_slopes_QQ[1::2]
    found["control"] = cosine(one[:, 1::2], one[:, ::2], two[:, 1::2])
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
    begun = []  # the first two words after "=" of correct completions: in countdown number and sign
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
        "beginnings": f"{sum(begun) / np.count_nonzero(begun):.1f}",
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Return rows as a table in Markdown."""
    lines = [rows[0], ["---"] * len(rows[0]), *(row.values() for row in rows)]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def tables() -> dict[str, str]:
    """Return README.md's tables by name."""
    with gzip.open(HERE / "samples.jsonl.gz", "rt") as file:
        records = [*map(json.loads, file)]
    found = {record["family"]: effects(record) for record in records if record["products"]}
    signs = [
        {"family": name} | {way: own.get(way, FEW) for way in WAYS} for name, own in found.items()
    ]
    return {
        "samples": table([of_samples(one) for one in records if "float32" not in one["family"]]),
        "signs": table(signs),
        "counts": table(
            [count(way, [row[way] for row in signs if "," not in row["family"]]) for way in WAYS]
        ),
    }


def count(way: str, found: list[Effect]) -> dict[str, Any]:
    """Return in how many families a sign is decided, one by one and by Holm over all of them."""
    p = np.sort([each.p for each in found])
    signs = [each.sign for each in found]
    return {
        "": way,
        "families": len(found),
        "up": signs.count("up"),
        "down": signs.count("down"),
        "by Holm": int(np.cumprod(p * np.arange(len(p), 0, -1) < 0.05).sum()),
    }


def main() -> None:
    """Write the tables into the page, between `<!-- table: NAME -->` and `<!-- end -->`."""
    path, made = HERE / "README.md", tables()
    marks = r"(<!-- table: (.*?) -->\n).*?(<!-- end -->)"
    text = re.sub(
        marks, lambda at: at[1] + made[at[2]] + at[3], path.read_text("utf-8"), flags=re.DOTALL
    )
    path.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
