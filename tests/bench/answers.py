"""Verdicts on pairs of gold and answer: ours, plain math-verify's, and what a strict but fair
reader says.

    python tests/bench/answers.py [--write]

The pairs and their truth are in `tests/golden/answers.tsv`. They were made up for this table, from
how models write. Plain math-verify is TRL's `accuracy_reward` for the completion `So it is
\\boxed{ANSWER}.` and the solution `\\boxed{GOLD}`, with math-verify 0.9. With --write, our verdicts
are written into the table too.
"""

import sys
from collections import defaultdict
from pathlib import Path

from common import report, table

PAIRS = Path(__file__).parents[1] / "golden" / "answers.tsv"
HEAD = ["kind", "gold", "answer", "truth", "math-verify", "ours"]


def read() -> list[list[str]]:
    return [line.split("\t") for line in PAIRS.read_text(encoding="utf-8").splitlines()[1:]]


def ours(rows: list[list[str]]) -> list[bool]:
    from trl_miner.grading import grade

    texts, golds = [rf"So it is \boxed{{{row[2]}}}." for row in rows], [row[1] for row in rows]
    return [verdict.is_correct is True for verdict in grade("math", texts, golds)]


def main() -> None:
    rows = read()
    for row, verdict in zip(rows, ours(rows), strict=True):
        row[5] = str(int(verdict))
    if "--write" in sys.argv:
        PAIRS.write_text("".join("\t".join(row) + "\n" for row in [HEAD, *rows]), encoding="utf-8")
    by_kind = defaultdict(list)
    for row in rows:
        by_kind[row[0]].append(row)
    lines = [_counts(kind, of_kind) for kind, of_kind in by_kind.items()] + [_counts("all", rows)]
    lost = sum(row[4] == row[3] != row[5] for row in rows)
    whats = ("agrees", "rejects a right one", "accepts a wrong one")
    head = ["kind", "pairs", "right", *(f"{who}: {what}" for who in HEAD[4:] for what in whats)]
    report(
        "answers",
        "# Verdicts on made-up answers\n\nPairs of `tests/golden/answers.tsv`. `right` is how many"
        " answers a strict but fair reader accepts. Pairs that math-verify gets right and we do"
        f" not: {lost}. The rules were written with these pairs in view, so on other answers expect"
        " less.\n\n`python tests/bench/answers.py --write`\n\n" + table(head, lines),
    )


def _counts(kind: str, rows: list[list[str]]) -> list[object]:
    right = [row[3] for row in rows].count("1")
    cells: list[object] = [kind, len(rows), right]
    for column in (4, 5):
        pairs = [(row[3], row[column]) for row in rows]
        cells += [sum(a == b for a, b in pairs), pairs.count(("1", "0")), pairs.count(("0", "1"))]
    return cells


if __name__ == "__main__":
    main()
