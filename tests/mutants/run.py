"""Plant the faults of `faults.tsv` one at a time, and say which the tests find.

`python tests/mutants/run.py [FIRST LAST] [--write]`: all faults, or those of some lines. A fault is a file, a
text in it, what stands there instead, and the tests of its part, which run in a fork of this process:
importing TRL takes longer than most of them. `--write` puts the table into CONTRIBUTING.md.
"""

import importlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FAULTS = Path(__file__).with_name("faults.tsv")
# The package itself is imported in the forks, from a copy.
IMPORTS = "pytest hypothesis trl.trainer.grpo_trainer peft latex2sympy2_extended scipy.stats pandas"
OPTIONS = "--import-mode=importlib -x -q -p no:cacheprovider --no-header"


def faults():
    """Return the rows of the table: file, old text, new text, tests."""
    return [line.split("\t") for line in FAULTS.read_text("utf-8").splitlines() if line[0] != "#"]


def found_by(copy, file, old, new, tests):
    """Return the name of the first test that fails with the fault; empty: none does."""
    path, log = Path(copy, "trl_miner", file), Path(copy, "log")
    text = path.read_text("utf-8")
    if text.count(old) != 1:
        raise ValueError(f"{file} has {old!r} {text.count(old)} times: it must be once.")
    path.write_text(text.replace(old, new), "utf-8")
    child = os.fork()
    if child == 0:
        with open(log, "w") as out:
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
        words = ["-o", "addopts=", "-m", "not (browser or vllm)", *OPTIONS.split(), *tests.split()]
        code = sys.modules["pytest"].main(words)
        sys.stdout.flush()
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    path.write_text(text, "utf-8")
    failed = [row for row in log.read_text().splitlines() if row.startswith(("FAILED", "ERROR"))]
    if code and not failed:
        raise ValueError(f"{file}: {log.read_text()[-4000:]}")
    return failed[0].split()[1].partition("[")[0].partition("::")[2] if failed else ""


def row(*cells):
    """Return a row of a table in Markdown."""
    cells = [cell.replace("|", r"\|") for cell in cells]
    return f"| {' | '.join(cells)} |"


def main(words):
    """Print a line for each fault, and return how many were missed."""
    numbers = [int(word) for word in words if word.isdecimal()]
    rows = faults()[slice(*numbers)] if numbers else faults()
    lines = []
    with tempfile.TemporaryDirectory() as copy:
        for name in ("trl_miner", "tests", "recipes", "setup.cfg"):
            copies = shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile
            copies(ROOT / name, Path(copy, name))
        os.environ |= {"PYTHONPATH": copy, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # two faults of a second are one to a cache
        os.chdir(copy)
        sys.path[0] = copy
        for name in IMPORTS.split():
            importlib.import_module(name)
        for file, old, new, tests in rows:
            name = found_by(copy, file, old, new, tests)
            planted = f"`{new}`" if new else "nothing"
            lines.append(row(f"`{file}`", f"`{old.strip()}`", planted, name or "**missed**"))
            print(lines[-1], flush=True)
    if "--write" in words:
        page = ROOT / "CONTRIBUTING.md"
        before, _, rest = page.read_text("utf-8").partition("<!-- faults -->")
        head = [row("File", "Text", "Planted", "Found by"), row(*["---"] * 4)]
        table, (_, _, after) = "\n".join([*head, *lines]), rest.partition("<!-- end -->")
        page.write_text(f"{before}<!-- faults -->\n{table}\n<!-- end -->{after}", "utf-8")
    missed = sum("**missed**" in line for line in lines)
    print(f"{len(lines) - missed} found, {missed} missed")
    return missed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 2)
