"""All checks of a recipe, as lines and a table."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from ...progress import Progress
from ...recipe import read_recipe
from ..plan import make_plan
from . import memory, model_shape
from .checks import CHECKS
from .context import FAILED, NOT_CHECKED, OK, WARNING, Context, Finding
from .file_checks import FILE_CHECKS
from .machine import GIB, Machine
from .memory_checks import utilization_of


def examine(recipe: str | Path, overrides: Sequence[str], machine: Machine) -> tuple[list[Finding], Context | None]:
    """Run every check.

    Args:
        recipe: Path of the recipe.
        overrides: Of its settings, as on a command line.
        machine: Where it is to run.

    Returns:
        The findings, and what they were found on; None where not even a plan can be made.

    Raises:
        ValueError: The recipe cannot be read.
    """
    settings = read_recipe(recipe, overrides)
    try:
        plan = make_plan(recipe, overrides, num_gpus=0 if settings.use_cpu else len(machine.gpus))
    except ValueError as error:
        return [Finding(FAILED, "plan", str(error))], None
    context = Context(plan, machine)
    findings = [Finding(WARNING, "note", note) for note in plan.notes if "trust_remote_code" not in note]
    return [*findings, *_run_checks(context)], context


def _run_checks(context: Context) -> Iterator[Finding]:
    checks = (*CHECKS, *FILE_CHECKS)
    with Progress("checking", len(checks), unit="questions", leave=False) as progress:
        for check in checks:
            progress.note = check.__name__.removeprefix("check_").replace("_", " ")
            found = check(context)
            yield from [found] if isinstance(found, Finding) else found
            progress.advance()


def lines(findings: Sequence[Finding]) -> list[str]:
    """One line for each finding: status, what it is about, what to do."""
    width = max(len(finding.about) for finding in findings)
    return [f"{finding.status:<11}  {finding.about:<{width}}  {finding.text}" for finding in findings]


def summary(findings: Sequence[Finding]) -> str:
    """How many findings there are of each status, in one line."""
    count = {status: sum(finding.status == status for finding in findings) for status in (FAILED, WARNING)}
    left = sum(finding.status == NOT_CHECKED for finding in findings)
    good = sum(finding.status == OK for finding in findings)
    return f"{good} ok, {count[WARNING]} warnings, {count[FAILED]} failed, {left} not checked."


def memory_table(context: Context) -> list[str]:
    """The parts of the estimate, in GiB; empty where the model is not known."""
    try:
        shape = context.shape
    except OSError:
        return []
    if shape.model_type not in model_shape.DENSE:
        return []
    run = context.run
    found = memory.estimate_training(shape, run)
    largest = max(found.one_of, key=lambda name: found.one_of[name])
    trained = "" if not shape.adapter else f", {shape.adapter / 1e6:.1f} M trained"
    head = f"Memory of one training process in GiB ({run.sharding}, {run.processes} process(es), "
    head += f"{run.rows} rollouts of {run.tokens} tokens; {shape.parameters / 1e9:.2f} B parameters{trained}, from "
    rows = [(name, size, "") for name, size in found.held.items()]
    rows += [(name, size, "" if name == largest else "not at the same time") for name, size in found.one_of.items()]
    table = [f"{head}{shape.known}):", *(_row(*row) for row in rows), _row("together", found.total, "")]
    server = [context.machine.gpus[i].free for i in context.plan.server_gpus if i < len(context.machine.gpus)]
    if server:
        share = memory.estimate_server(
            shape, min(server), tensor_parallel=len(server), utilization=utilization_of(context.plan),
            length=run.tokens,
        )  # fmt: skip
        table += [
            "Memory of one server GPU in GiB:",
            _row("weights", share.weights, ""),
            _row("KV cache", share.cache, ""),
        ]
        table.append(_row("CUDA, graphs, activations (rule of thumb)", memory.SERVER_BYTES, ""))
    return table


def _row(name: str, size: int, remark: str) -> str:
    return f"  {name:<42} {size / GIB:>9.3f}  {remark}".rstrip()
