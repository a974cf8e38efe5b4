"""What the benchmarks share: the machine's name, honest statistics, tables.

python tests/bench/common.py    fails where a table is older than the code that it measured
"""

import ast
import os
import platform
import statistics
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path

import torch

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PACKAGE = HERE.parent.parent / "trl_miner"
# What a table measures: the code whose change makes it old. Of a GPU's tables nobody can ask that here.
MEASURED = {
    "advantage": ("methods/miner.py", "methods/groups.py"),
    "step": ("trainer/trainer.py", "trainer/compact_step.py", "trainer/forward.py"),
    "verifier": ("grading/pool.py", "grading/worker.py", "grading/agreement.py"),
}


def machine() -> str:
    """Name the machine and the versions."""
    import transformers
    import trl

    model = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").is_file():
        words = Path("/proc/cpuinfo").read_text().partition("model name")[2].splitlines()
        model = words[0].partition(":")[2].strip() if words else model
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return (
        f"{model}, {os.cpu_count()} cores{gpu}; Python {platform.python_version()}, torch"
        f" {torch.__version__} ({torch.get_num_threads()} threads), transformers"
        f" {transformers.__version__}, trl {trl.__version__}"
    )


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, median, high = statistics.quantiles(values, n=4)
    return low, median, high


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table in Markdown."""
    lines = [list(header), ["---"] * len(header), *([str(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def stamp(name: str) -> str:
    """Return a line with a checksum of the code that a table measures: of its syntax, so that
    comments and layout do not count."""
    sums = []
    for path in MEASURED[name]:
        tree = ast.parse((PACKAGE / path).read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                node.value = ast.Constant(None)  # a docstring
        sums.append(f"{path} {zlib.crc32(ast.dump(tree).encode()):08x}")
    return f"Code: {', '.join(sums)}"


def old_tables() -> list[str]:
    """Return the tables that were measured with other code than there is."""
    return [
        name
        for name in sorted(MEASURED)
        if not (RESULTS / f"{name}.md").is_file()
        or stamp(name) not in (RESULTS / f"{name}.md").read_text(encoding="utf-8").splitlines()
    ]


def promise(holds: bool, text: str) -> None:
    """End a benchmark, after its table, where a ratio is not what the table promises."""
    if not holds:
        sys.exit(f"A promise is not kept: {text}")


def report(name: str, text: str) -> None:
    """Print, and with `--write` write to tests/bench/results/NAME.md, with the code's checksum."""
    if name in MEASURED:
        text += f"\n\n{stamp(name)}"
    print(text)
    if "--write" in sys.argv:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{name}.md").write_text(text + "\n")


if __name__ == "__main__":
    if old := old_tables():
        sys.exit(f"Measured with other code than there is: {', '.join(old)}.")
