"""Compare the README with its first run: `python .ci/readme.py MINER GRPO [--write]`.

MINER and GRPO are the folders of `trl-miner train arithmetic/quick` and of its twin with
`--advantage_estimator grpo`. `--write` puts their numbers into the README, and takes its picture
anew. Numbers of another kind of processor differ a little.
"""

import re
import subprocess
import sys
from pathlib import Path

from trl_miner.evaluation.held_out import read_held_out
from trl_miner.report.runs import read_run

ROOT = Path(__file__).resolve().parent.parent
README, PICTURE = ROOT / "README.md", ROOT / "docs" / "images" / "inspect.png"
TABLE = """| | Pass@1 before | Pass@1 after | Completions with a gradient |
| --- | ---: | ---: | ---: |
| MINER | {:.3f} | {:.3f} | {:.0f} % |
| GRPO | {:.3f} | {:.3f} | {:.0f} % |
"""
MARKED = re.compile(r"(?<=<!-- first run -->\n).*?(?=<!-- end -->)", re.DOTALL)
MOST_APART = 2 * (0.03, 0.03, 8)  # between processors


def measure(folder: Path) -> tuple[float, float, float]:
    """Return Pass@1 before and after a run, and the mean percentage of completions with a
    gradient."""
    moments = read_held_out(folder)
    before, after = (moments[name].scores["pass@1"] for name in ("before", "after"))
    return before, after, 100 * read_run(folder).mean("completions/used")


def take_picture(folder: Path) -> None:
    """Write the picture of the first prompts on the page of `trl-miner inspect`."""
    from playwright.sync_api import sync_playwright

    subprocess.run(["trl-miner", "inspect", "--quiet", str(folder)], check=True)
    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = chromium.new_page(
            viewport={"width": 900, "height": 560}, device_scale_factor=1.5, color_scheme="light"
        )
        page.goto((folder / "inspect.html").resolve().as_uri())
        page.screenshot(path=str(PICTURE))
        chromium.close()


def main(miner: Path, grpo: Path, write: bool) -> None:
    """Write the README's table and picture, or raise ValueError if they are not those of the
    runs."""
    measured, text = (*measure(miner), *measure(grpo)), README.read_text(encoding="utf-8")
    if write:
        README.write_text(MARKED.sub(TABLE.format(*measured), text), encoding="utf-8")
        take_picture(miner)
        return
    (shown,) = MARKED.findall(text)
    numbers = [float(number) for number in re.findall(r"(?<=\| )[\d.]+", shown)]
    apart = [abs(number - value) for number, value in zip(numbers, measured, strict=True)]
    if any(gap > most for gap, most in zip(apart, MOST_APART, strict=True)):
        raise ValueError(
            f"README.md must state its first run: got {numbers}, the runs have {measured}. Add"
            " --write."
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), "--write" in sys.argv)
