"""Answers judged per second: TRL's accuracy_reward, and math_reward with its processes.

    python tests/bench/verifier.py [--write]

Two mixtures of 16 problems x 16 rollouts of about 1,500 characters. "As a model writes" is what a
maths data set gives: 70 % integers, else fractions, roots, pairs and polynomials; 60 % of the
rollouts are right, the others box one of four wrong answers. "Hard" has no integers, and no two
rollouts of a problem write the same: a right one adds and subtracts a number, a wrong one adds
another. The pool starts before the clock runs (about a second, once per run). Rounds alternate; the
least is printed, which other programs disturb the least.
"""

import logging
import random
import time
from functools import partial

from common import machine, promise, report, table

from trl_miner import grading
from trl_miner.rewards import math_reward

PROBLEMS, ROLLOUTS, ROUNDS = 16, 16, 3
AS_WRITTEN, HARD = "as a model writes", "hard"


def mixture(kind, seed):
    """Return texts, references, and whether each text is right."""
    rng = random.Random(f"{kind} {seed}")
    texts, golds, truths = [], [], []
    for _ in range(PROBLEMS):
        gold = expression(rng, integer=kind == AS_WRITTEN and rng.random() < 0.7)
        wrong = [
            each for _ in range(9) if (each := expression(rng, gold.lstrip("-").isdigit())) != gold
        ]
        for _ in range(ROLLOUTS):
            is_right = rng.random() < 0.6
            answer = gold if is_right else rng.choice(wrong[:4])
            if kind == HARD and gold[0] != "(":
                added = rng.randint(1, 10**6)
                answer = f"{gold} + {added} - {added if is_right else added + 1}"
            work = "We compute step by step, $x^2 + 1$ being even. " * 32
            texts.append(rf"{work}So it is $\boxed{{{answer}}}$.")
            golds.append(gold)
            truths.append(float(is_right))
    return texts, golds, truths


def expression(rng, integer):
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


def main():
    from trl.rewards import accuracy_reward

    logging.disable(logging.WARNING)
    rows, ratios = [], {}
    for kind in (AS_WRITTEN, HARD):
        seconds, right, shares = {}, {}, []
        for round_ in range(ROUNDS):
            texts, golds, truths = mixture(kind, round_)  # new ones: no cache may answer
            shares.append(sum(truths) / len(truths))
            completions = [[{"role": "assistant", "content": text}] for text in texts]
            boxed = [rf"$\boxed{{{gold}}}$" for gold in golds]  # as TRL's function wants it
            ways = {"accuracy_reward of TRL": partial(accuracy_reward, completions, boxed)}
            for workers in (1, 2):
                ways[f"math_reward, {workers} worker(s)"] = partial(math_reward, completions, golds)
            for name, way in ways.items():
                if name[0] == "m":
                    grading.configure(workers=int(name.split()[1]))
                    grading.grade("math", [rf"\boxed{{y+{i}}}" for i in range(8)], ["z"] * 8)
                start = time.perf_counter()
                rewards = way()
                seconds.setdefault(name, []).append(time.perf_counter() - start)
                agreed = [reward == truth for reward, truth in zip(rewards, truths, strict=True)]
                right.setdefault(name, []).append(sum(agreed) / len(agreed))
        base = min(seconds["accuracy_reward of TRL"])
        share = f"{sum(shares) / len(shares):.0%}"
        for name, each in seconds.items():
            ratios[kind, name] = base / min(each)
            rows.append(
                [kind, share, name, f"{min(each):.2f}", f"{len(truths) / min(each):.0f}",
                 f"{base / min(each):.2f}", f"{sum(right[name]) / len(right[name]):.1%}"]
            )  # fmt: skip
    head = ["mixture", "right answers", "how", "s", "answers/s", "times TRL's", "verdicts as made"]
    report(
        "verifier",
        f"# Judging {PROBLEMS * ROLLOUTS} answers\n\nLeast of {ROUNDS} rounds.\n\n{machine()}."
        f" `python tests/bench/verifier.py --write`\n\n" + table(head, rows),
    )
    grading.configure()
    two = "math_reward, 2 worker(s)"
    promise(
        ratios[AS_WRITTEN, two] >= 1, "as many answers a second as TRL's, as a model writes them"
    )
    promise(ratios[HARD, two] >= 1 / 1.5, "at most 1.5 times TRL's time on the hard ones")


if __name__ == "__main__":
    main()
