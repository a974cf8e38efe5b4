"""Compare the README with its first run: `python .ci/readme.py RUN [--write]`.

RUN is the `output_dir` of `trl-miner train arithmetic/quick`. `--write` puts its numbers and
picture into the README. Numbers of another kind of processor differ a little.
"""

import re
import shutil
import sys
from pathlib import Path

from trl_miner.runs.history import read_run

ROOT = Path(__file__).resolve().parent.parent
README, PICTURE = ROOT / "README.md", ROOT / "recipes" / "arithmetic" / "quick.png"
SENTENCE = (
    "Pass@1, the share of right answers, rose from {:.3f} to {:.3f}. In the last 20 steps GRPO"
    " would have had a gradient from\n{:.0f} % of the answers; MINER had one from {:.0f} %.\n"
)
MARKED = re.compile(r"(?<=<!-- first run -->\n).*?(?=<!-- end -->)", re.DOTALL)
MOST_APART = (0.03, 0.03, 8, 8)  # between processors


def measure(folder: Path) -> tuple[float, ...]:
    """Return Pass@1 before and after, and the percentages of rollouts with a gradient under GRPO
    and under MINER."""
    run = read_run(folder)
    late = [
        [100 * share for step, share in run.values(f"rollouts/{name}") if step > run.steps - 20]
        for name in ("grpo", "used")
    ]
    return (
        run.scores[0]["pass@1"],
        run.scores[run.steps]["pass@1"],
        *(sum(part) / len(part) for part in late),
    )


def main(folder: Path, write: bool) -> None:
    """Write the README's sentence and picture, or raise ValueError where they are not those of the
    run."""
    found, text = measure(folder), README.read_text(encoding="utf-8")
    if write:
        README.write_text(MARKED.sub(SENTENCE.format(*found), text), encoding="utf-8")
        shutil.copyfile(folder / "training.png", PICTURE)
        return
    (shown,) = MARKED.findall(text)
    numbers = [float(number) for number in re.findall(r"[\d.]*\d(?= to| %|\. In)", shown)]
    apart = [abs(number - value) for number, value in zip(numbers, found, strict=True)]
    if any(gap > most for gap, most in zip(apart, MOST_APART, strict=True)):
        raise ValueError(
            f"README.md must state its first run: got {numbers}, the run has {found}. Add --write."
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), "--write" in sys.argv)
