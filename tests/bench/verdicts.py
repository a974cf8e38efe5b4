"""Errors on pairs of gold and answer: ours, and those of math-verify alone.

    python tests/bench/verdicts.py [--write]
    python tests/bench/verdicts.py TABLE    # the counts alone, of a table that nobody has looked at

The tables are in `tests/verdicts` and `tests/golden`. With --write, the verdicts of math-verify go
into the tables, and the counts into the guide of grading. math-verify alone is TRL's
`accuracy_reward`: it parses `\\boxed{GOLD}` and the whole text, with math-verify 0.9.

A table has the columns gold, answer (a text with its box, or the content of a box where `kind`
stands before) and truth (1: right).
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from common import table

TESTS = Path(__file__).parents[1]
GUIDE = TESTS.parent / "docs" / "source" / "reference" / "grading_rules.md"
START, END = "<!-- verdicts: tests/bench/verdicts.py --write -->", "<!-- verdicts end -->"
# What each holds, for the guide.
TABLES = {
    "verdicts/given.tsv": "pairs by a stranger, in the style of real outputs",
    "verdicts/own.tsv": "a right answer and a near miss for each kind",
    "golden/answers.tsv": "made-up answers, by kind",
    "verdicts/unboxed.tsv": "texts without a box, many of which deny or doubt",
}
_MATH_VERIFY = "math-verify"

Row = dict[str, str]


def read(path: Path) -> list[Row]:
    head, *lines = path.read_text(encoding="utf-8").splitlines()
    names = head.split("\t")
    return [dict(zip(names, line.split("\t"), strict=True)) for line in lines]


def text_of(row: Row) -> str:
    """The whole output of a model."""
    if "text" in row:
        return row["text"].replace(r"\n", "\n")
    return rf"So it is \boxed{{{row['answer']}}}." if "kind" in row else row["answer"]


def ours(rows: Sequence[Row]) -> list[bool]:
    from trl_miner.grading import grade

    verdicts = grade(
        "math", [*map(text_of, rows)], [row["gold"] for row in rows], unboxed="text" in rows[0]
    )
    return [verdict.is_correct is True for verdict in verdicts]


def math_verify(rows: Sequence[Row]) -> list[bool]:
    from math_verify import LatexExtractionConfig, parse, verify

    config = [LatexExtractionConfig(boxed_match_priority=0)]

    def is_right(row: Row) -> bool:
        gold = row["gold"] if r"\boxed" in row["gold"] else rf"\boxed{{{row['gold']}}}"
        try:
            text = text_of(row)
            answer = parse(text, config) if "boxed" in text else parse(text)
            return bool(verify(parse(gold, config), answer))
        except Exception:
            return False

    return [*map(is_right, rows)]


def counts(rows: Sequence[Row], *verdicts: Sequence[bool]) -> list[int]:
    """How many there are and are right; for each verifier how many wrong it accepts and right it
    rejects."""
    truths = [row["truth"] == "1" for row in rows]
    numbers = [len(rows), sum(truths)]
    for found in verdicts:
        pairs = [*zip(truths, found, strict=True)]
        numbers += [pairs.count((False, True)), pairs.count((True, False))]
    return numbers


def lines(judge: Callable[[Sequence[Row]], list[bool]] = ours) -> str:
    """The table of the guide, with math-verify's verdicts as they are stored."""
    rows_of_guide = []
    for name, what in TABLES.items():
        rows = read(TESTS / name)
        stored = [row[_MATH_VERIFY] == "1" for row in rows]
        found = judge(rows)
        alone = sum(
            m == (row["truth"] == "1") != o for row, m, o in zip(rows, stored, found, strict=True)
        )
        rows_of_guide.append([what, *counts(rows, found, stored), alone])
    head = ["pairs of", "number", "right", "wrong accepted", "right rejected", "wrong accepted by math-verify",
            "right rejected by math-verify", "only math-verify agrees"]  # fmt: skip
    return table(head, rows_of_guide)


def write() -> None:
    for name in TABLES:
        path = TESTS / name
        if path.parent.name == "golden":  # answers.py holds its own
            continue
        rows = read(path)
        for row, verdict in zip(rows, math_verify(rows), strict=True):
            row[_MATH_VERIFY] = str(int(verdict))
        text = ["\t".join(rows[0]), *("\t".join(row.values()) for row in rows)]
        path.write_text("\n".join(text) + "\n", encoding="utf-8")
    before, rest = GUIDE.read_text(encoding="utf-8").split(START)
    GUIDE.write_text(
        before + START + "\n\n" + lines() + "\n\n" + END + rest.split(END)[1], encoding="utf-8"
    )


def main() -> None:
    arguments = [argument for argument in sys.argv[1:] if argument != "--write"]
    if arguments:
        rows = read(Path(arguments[0]))
        numbers = counts(rows, ours(rows), math_verify(rows))
        print(
            "pairs {}, right {}; ours: {} wrong accepted, {} right rejected; math-verify: {} and {}".format(
                *numbers
            )
        )
        return
    if "--write" in sys.argv:
        write()
    print(lines())
    for name in TABLES:
        rows = read(TESTS / name)
        for row, verdict in zip(rows, ours(rows), strict=True):
            if verdict != (row["truth"] == "1"):
                print("accepted" if verdict else "rejected", *row.values(), sep=" | ")


if __name__ == "__main__":
    main()
