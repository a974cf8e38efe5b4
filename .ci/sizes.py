"""Compare the package with `.ci/sizes.tsv`, what each folder may weigh: `python .ci/sizes.py`.

A size is the number of nodes of the syntax trees: a bar on lines would make them denser. The
numbers in the table only go down; a change that needs more takes something out first.
"""

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def nodes(path: Path) -> int:
    """Return the nodes of a file, or of all files below a folder."""
    files = [path] if path.is_file() else path.rglob("*.py")
    trees = (ast.parse(file.read_text(encoding="utf-8")) for file in files)
    return sum(1 for tree in trees for _ in ast.walk(tree))


def main() -> int:
    """Print what is too large, and return the exit code."""
    lines = (ROOT / ".ci" / "sizes.tsv").read_text(encoding="utf-8").splitlines()
    table = [line.split("\t") for line in lines if not line.startswith("#")]
    listed = {name for names, _ in table for name in names.split()}
    folders = [
        path for path in (ROOT / "trl_miner").iterdir() if path.is_dir() or path.suffix == ".py"
    ]
    parts = {f"trl_miner/{path.name}" for path in folders if nodes(path)}
    faults = [f"{name} has no line in .ci/sizes.tsv" for name in sorted(parts - listed)]
    for names, most in table:
        found = sum(nodes(ROOT / name) for name in names.split())
        if found > int(most):
            faults.append(f"{names} may have {most} syntax nodes: it has {found}")
    print(
        "\n".join(faults)
        or f"{sum(map(nodes, map(ROOT.joinpath, parts)))} syntax nodes in trl_miner"
    )
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
