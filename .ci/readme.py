"""Compare the README with its first run: `python .ci/readme.py MINER GRPO [--write]`.

MINER and GRPO are the folders of `trl-miner train arithmetic/quick` and of its twin with
`--advantage_estimator grpo`. `--write` puts their numbers into the README, and takes its picture
anew. Numbers of another kind of processor differ a little.
"""

import re
import subprocess
import sys
from pathlib import Path

from trl_miner.runs.history import read_run

ROOT = Path(__file__).resolve().parent.parent
README, PICTURE = ROOT / "README.md", ROOT / "docs" / "images" / "inspect.png"
TABLE = """
| | Pass@1 before | Pass@1 after | Completions with a gradient |
| --- | ---: | ---: | ---: |
| MINER | {:.3f} | {:.3f} | {:.0f} % |
| GRPO | {:.3f} | {:.3f} | {:.0f} % |

"""
MARKED = re.compile(r"(?<=<!-- first run -->\n).*?(?=<!-- end -->)", re.DOTALL)
MOST_APART = 2 * (0.03, 0.03, 8)  # between processors


def measure(folder: Path) -> tuple[float, float, float]:
    """Return Pass@1 before and after a run, and the percentage of completions with a gradient in
    its last 20 steps."""
    run = read_run(folder)
    late = [100 * share for step, share in run.values("rollouts/used") if step > run.steps - 20]
    return run.scores[0]["pass@1"], run.scores[run.steps]["pass@1"], sum(late) / len(late)


def take_picture(folder: Path) -> None:
    """Write the picture of the first all-right prompt on the page of `trl-miner inspect`."""
    sys.path.insert(0, str(ROOT / "tests"))
    from browser import open_page
    from PIL import Image

    subprocess.run(["trl-miner", "inspect", "--quiet", str(folder)], check=True)
    size = {"width": 900, "height": 900}
    with open_page(folder / "inspect.html", viewport=size, device_scale_factor=1.5) as shown:
        shown.wait_until("document.querySelectorAll('main .text').length > 4")
        area = shown.page.locator("#prompt-text").locator("..").bounding_box() | {"height": 528}
        shown.page.screenshot(path=str(PICTURE), clip=area)
    Image.open(PICTURE).convert("RGB").quantize(128).save(PICTURE, optimize=True)


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
