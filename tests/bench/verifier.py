"""Answers judged per second: math-verify called in a loop, and `grade` with its pool of processes.

    python tests/bench/verifier.py [--write]

Two mixtures of 64 problems x 16 rollouts of about 1,500 characters. "Ordinary" is what a maths data
set gives: 70 % integer golds, else fractions, roots, pairs and polynomials; 60 % of the rollouts
are right, the others box one of four wrong answers. "Hard" has no integers, and no two rollouts of
a problem write the same: every answer needs math-verify. The pool starts before the clock runs
(about a second, once per run). Rounds alternate; the least is printed, which other programs disturb
the least.
"""

import random
import time

from common import machine, promise, report, table

from trl_miner import grading

PROBLEMS, ROLLOUTS, ROUNDS = 64, 16, 5
LEAST = 4  # times the loop, with two workers


def mixture(kind: str, seed: int) -> tuple[list[str], list[str]]:
    rng = random.Random(f"{kind} {seed}")
    texts, golds = [], []
    for _ in range(PROBLEMS):
        gold = _expression(rng, integer=kind == "ordinary" and rng.random() < 0.7)
        wrong = [_expression(rng, integer=gold.lstrip("-").isdigit()) for _ in range(4)]
        for _ in range(ROLLOUTS):
            answer = gold if rng.random() < 0.6 else rng.choice(wrong)
            if kind == "hard":
                answer += f" + {rng.randint(1, 10**6)} - {rng.randint(1, 10**6)}"
            texts.append(
                "We compute step by step, $x^2 + 1$ being even. " * 32
                + rf"So it is $\boxed{{{answer}}}$."
            )
            golds.append(gold)
    return texts, golds


def _expression(rng: random.Random, integer: bool) -> str:
    a, b, c = rng.randint(1, 99), rng.randint(2, 99), rng.randint(2, 9)
    if integer:
        return str(rng.randint(-50, 999))
    forms = [
        rf"\frac{{{a}}}{{{b}}}",
        rf"{a}\sqrt{{{c}}}",
        rf"({a}, {b})",
        rf"x^2 + {a}x - {b}",
        rf"\frac{{{a}\pi}}{{{c}}}",
    ]
    return rng.choice(forms)


def loop(texts: list[str], golds: list[str]) -> list[float]:
    from math_verify import LatexExtractionConfig, parse, verify

    boxed = [LatexExtractionConfig(boxed_match_priority=0)]
    return [
        float(verify(parse(rf"\boxed{{{gold}}}", boxed), parse(text, boxed)))
        for text, gold in zip(texts, golds, strict=True)
    ]


def pool(texts: list[str], golds: list[str]) -> list[float | None]:
    return [verdict.is_correct for verdict in grading.grade("math", texts, golds)]


def main() -> None:
    rows = []
    for kind in ("ordinary", "hard"):
        seconds: dict[str, list[float]] = {"loop": [], "1": [], "2": []}
        differ = 0
        for round_ in range(ROUNDS):
            texts, golds = mixture(kind, round_)  # new ones: no cache may answer
            verdicts = {}
            for name in ("loop", "1", "2"):
                if name != "loop":
                    grading.configure(workers=int(name))
                    # every worker starts
                    grading.grade("math", [rf"\boxed{{y+{i}}}" for i in range(8)], ["z"] * 8)
                start = time.perf_counter()
                verdicts[name] = (loop if name == "loop" else pool)(texts, golds)
                seconds[name].append(time.perf_counter() - start)
            differ += sum(a != b for a, b in zip(verdicts["loop"], verdicts["2"], strict=True))
            assert verdicts["1"] == verdicts["2"]
        count = PROBLEMS * ROLLOUTS
        base = min(seconds["loop"])
        for name, title in (
            ("loop", "math-verify in a loop"),
            ("1", "grade, 1 worker"),
            ("2", "grade, 2 workers"),
        ):
            least = min(seconds[name])
            paired = [a / b for a, b in zip(seconds["loop"], seconds[name], strict=True)]
            rows.append(
                [kind, title, f"{least:.2f}", f"{count / least:.0f}", f"{base / least:.2f}",
                 f"{min(paired):.2f} to {max(paired):.2f}", differ if name == "2" else ""]
            )  # fmt: skip
    head = [
        "mixture",
        "how",
        "s",
        "answers/s",
        "times the loop",
        "over the rounds",
        "verdicts that differ",
    ]
    report(
        "verifier",
        f"# Judging {PROBLEMS * ROLLOUTS} answers\n\nLeast of {ROUNDS} rounds. The loop's caches"
        f" stay warm.\n\n{machine()}. `python tests/bench/verifier.py --write`\n\n"
        + table(head, rows),
    )
    grading.configure()
    promise(all(row[6] in ("", 0) for row in rows), "the verdicts are those of math-verify")
    times = [float(row[4]) for row in rows if row[1] == "grade, 2 workers"]
    promise(min(times) >= LEAST, f"two workers judge at least {LEAST} times as many answers")


if __name__ == "__main__":
    main()
