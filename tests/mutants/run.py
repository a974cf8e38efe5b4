"""Plant the faults of `faults.tsv` one at a time, and say which the tests find.

`python tests/mutants/run.py [FIRST LAST] [--write]`: all faults, or those of some lines. A fault is a file, a
text in it, what stands there instead, and the tests of its part. `--write` puts the table into
CONTRIBUTING.md.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FAULTS = Path(__file__).with_name("faults.tsv")


def faults():
    """Return the rows of the table: file, old text, new text, tests."""
    return [line.split("\t") for line in FAULTS.read_text("utf-8").splitlines() if line[0] != "#"]


def found_by(file, old, new, tests):
    """Return the name of the first test that fails with the fault; empty: none does."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("trl_miner", "tests", "recipes", "setup.cfg"):
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile
            copy(ROOT / name, Path(folder, name))
        path = Path(folder, "trl_miner", file)
        text = path.read_text("utf-8")
        if text.count(old) != 1:
            raise ValueError(f"{file} has {old!r} {text.count(old)} times: it must be once.")
        path.write_text(text.replace(old, new), "utf-8")
        command = [sys.executable, "-m", "pytest", "-o", "addopts=--import-mode=importlib"]
        command += ["-m", "not (browser or vllm)"]
        command += ["-x", "-q", "-p", "no:cacheprovider", "--no-header", *tests.split()]
        env = os.environ | {"PYTHONPATH": folder, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
        failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        if done.returncode and not failed:
            raise ValueError(f"{file}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        return failed[0].split()[1].partition("[")[0].partition("::")[2] if failed else ""


def main(words):
    """Print a line for each fault, and return how many were missed."""
    numbers = [int(word) for word in words if word.isdecimal()]
    rows = faults()[slice(*numbers)] if numbers else faults()
    lines = []
    for file, old, new, tests in rows:
        name = found_by(file, old, new, tests)
        lines.append(f"| `{file}` | `{old}` | `{new}` | {name or '**missed**'} |".replace("||", ""))
        print(lines[-1], flush=True)
    if "--write" in words:
        page = ROOT / "CONTRIBUTING.md"
        before, _, rest = page.read_text("utf-8").partition("<!-- faults -->")
        head = "\n| File | Text | Planted | Found by |\n| --- | --- | --- | --- |\n"
        after = rest.partition("<!-- end -->")[2]
        table = head + "\n".join(lines) + "\n"
        page.write_text(f"{before}<!-- faults -->{table}<!-- end -->{after}", "utf-8")
    missed = sum("**missed**" in line for line in lines)
    print(f"{len(lines) - missed} found, {missed} missed")
    return missed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 2)
