"""What the benchmarks share: the machine's name, honest statistics, tables.

python tests/bench/common.py    fails where a table is older than the code that it measured
"""

import ast
import gc
import itertools
import os
import platform
import statistics
import sys
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PACKAGE = HERE.parent.parent / "trl_miner"
# What a table measures: the code whose change makes it old. Of a GPU's tables nobody can ask that here.
_STEP = ("trainer/step.py", "trainer/micro_batches.py", "trainer/scoring.py")
MEASURED = {
    "advantage": ("methods/miner.py", "methods/groups.py"),
    "dealing": ("trainer/dealing.py", "trainer/micro_batches.py"),
    "overhead": ("methods/miner.py", "trainer/trainer.py", *_STEP),
    "packed_tokens": ("trainer/dealing.py", "trainer/micro_batches.py"),
    "step_kl": _STEP,
    "step_lengths": _STEP,
    "verifier": ("grading/pool.py", "grading/parsing.py", "grading/agreement.py"),
}

# The method alone, on TRL's own step.
AS_TRL = {"compute_less": False}


def machine() -> str:
    """Processor, cores, memory and versions, for the head of a result file."""
    import transformers
    import trl

    model = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").is_file():
        lines = [
            line
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ]
        model = lines[0].split(":")[1].strip() if lines else model
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return (
        f"{model}, {os.cpu_count()} cores, {memory:.0f} GiB{gpu}; Python"
        f" {platform.python_version()}, torch {torch.__version__} ({torch.get_num_threads()}"
        f" threads), transformers {transformers.__version__}, trl {trl.__version__}"
    )


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    low, median, high = statistics.quantiles(values, n=4)
    return low, median, high


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [list(header), ["---"] * len(header), *([str(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def reset_peak_memory() -> None:
    """Linux: reset the peak of the resident set."""
    Path("/proc/self/clear_refs").write_text("5")


def memory_mib(field: str) -> float:
    """VmRSS (now) or VmHWM (peak), in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise KeyError(field)


def tensors_mib(run: Callable[[], object]) -> float:
    """The most that the tensors made by `run` held at once, in MiB, as PyTorch's allocator told its
    profiler."""
    gc.collect()  # or what is older is freed meanwhile, which would count as less
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profiler:
        run()
    events = [
        event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"
    ]
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return max(itertools.accumulate(changes)) / 2**20


def stamp(name: str) -> str:
    """Return a line with a checksum of the code that a table measures: of its syntax, so that comments
    and layout do not count."""
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
        if stamp(name) not in (RESULTS / f"{name}.md").read_text(encoding="utf-8").splitlines()
    ]


def promise(holds: bool, text: str) -> None:
    """End a benchmark, after its table, where a ratio is not what the table promises."""
    if not holds:
        sys.exit(f"A promise is not kept: {text}")


def report(name: str, text: str) -> None:
    """Print, and with `--write` commit to tests/bench/results/NAME.md, with the code's checksum."""
    if name in MEASURED:
        text += f"\n\n{stamp(name)}"
    print(text)
    if "--write" in sys.argv:
        path = RESULTS / f"{name}.md"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text + "\n")
        print(f"written to {path}")


def report_table(
    name: str, title: str, text: str, header: Sequence[str], rows: Sequence[Sequence[object]]
) -> None:
    """`report` a table under a title, an explanation, and the machine with the command that
    measured it."""
    measured = f"{machine()}. `python tests/bench/{name}.py --write`"
    report(name, "\n\n".join([f"# {title}", text, measured, table(header, rows)]))


if __name__ == "__main__":
    if old := old_tables():
        sys.exit(f"Older than their code: {', '.join(old)}. Measure them anew, with --write.")
