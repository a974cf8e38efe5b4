"""Run all checks on a recipe, and format their findings and the memory estimate as tables."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ..launching.plan import Plan, make_plan
from ..progress import Progress
from ..recipe import read_recipe
from ..redaction import redact
from . import checks, memory, memory_checks
from .context import FAILED, NOT_CHECKED, OK, WARNING, Check, Context, Finding, failed, not_checked, warning
from .machine import GIB, Machine
from .model_shape import DENSE, UnknownModel, UnusableModel
from .rehearsal import check_trainer

SETTINGS: dict[str, Check] = {"settings": checks.check_settings}  # without which nothing else can be checked
RULES: dict[str, Check] = {"rules": checks.check_rules}
# What would end the training at its start, as far as that is quickly found out.
START: dict[str, Check] = {
    "packages": checks.check_packages,
    "tracker": checks.check_trackers,
    "output_dir": checks.check_output,
    "model": checks.check_model,
    "rewards": checks.check_rewards,
}
OTHERS: dict[str, Check] = {
    "versions": checks.check_versions,
    "GPUs": checks.check_gpus,
    "batch": checks.check_batch,
    "memory": memory_checks.check_training_memory,
    "token budget": memory_checks.check_token_budget,
    "vLLM memory": memory_checks.check_server_memory,
    "disk": checks.check_disk,
}
NEEDED = {"model", "rewards"}  # to build a trainer


def examine(recipe: str | Path, overrides: Sequence[str], machine: Machine) -> tuple[list[Finding], Context | None]:
    """Run every check. Return the findings and their context, which is None if no plan can be made."""
    settings = read_recipe(recipe, overrides)
    try:
        plan = make_plan(recipe, overrides, num_gpus=0 if settings.use_cpu else len(machine.gpus))
    except ValueError as error:
        return [failed(str(error), "plan")], None
    context = Context(plan, machine)
    notes = [warning(note, "note") for note in plan.notes]
    return [*notes, *_run_checks(context)], context


def refusals(plan: Plan, *, is_here: bool = True) -> list[Finding]:
    """Return why the training of a plan would fail at its start, as far as that is quickly found out.

    It looks at no GPU, no data and no server; of a plan for another machine only at its settings.
    """
    context = Context(plan, Machine("this machine", (), None))
    findings = _run(context, SETTINGS)
    if not _failed(findings):
        findings = [*findings, *_run(context, RULES | START if is_here else RULES)]
    return [finding for finding in findings if finding.status == FAILED]


def _run_checks(context: Context) -> Iterator[Finding]:
    with Progress("checking", unit="", leave=False):
        yield from (findings := _run(context, SETTINGS))
        if _failed(findings):
            return
        yield from (findings := _run(context, OTHERS | RULES | START))
        if not _failed(findings) & NEEDED:
            yield from _run(context, {"trainer": check_trainer})


def _run(context: Context, some: dict[str, Check]) -> list[Finding]:
    findings: list[Finding] = []
    for about, check in some.items():
        try:
            found = check(context)
            found = [found] if isinstance(found, Finding) else list(found)
        except UnknownModel as error:
            found = [not_checked(f"{error}.")]
        except UnusableModel:
            found = []  # the check of the model says so
        findings += [replace(finding, about=finding.about or about) for finding in found]
    return findings


def _failed(findings: Sequence[Finding]) -> set[str]:
    return {finding.about for finding in findings if finding.status == FAILED}


def table(findings: Sequence[Finding]) -> list[str]:
    """Return one line for each finding: status, subject, explanation."""
    width = max(len(finding.about) for finding in findings)
    return [f"{finding.status:<11}  {finding.about:<{width}}  {redact(finding.text)}" for finding in findings]


def summary(findings: Sequence[Finding]) -> str:
    """Return the number of findings of each status in one line."""
    count = Counter(finding.status for finding in findings)
    return f"{count[OK]} ok, {count[WARNING]} warnings, {count[FAILED]} failed, {count[NOT_CHECKED]} not checked."


def memory_table(context: Context) -> list[str]:
    """Return the estimate by component, in GiB; empty if the model is not known."""
    try:
        shape = context.shape
    except (UnknownModel, UnusableModel):
        return []
    if shape.model_type not in DENSE:
        return []
    run = context.run
    estimate = memory.estimate_training(shape, run)
    trained = f", {shape.adapter / 1e6:.1f} M trained" if shape.adapter else ""
    lines = [
        f"Memory of one training process in GiB ({run.sharding}, {run.processes} process(es), {run.rows} rollouts of "
        f"{run.tokens} tokens; {shape.parameters / 1e9:.2f} B parameters{trained}, from {shape.source}):",
        *(_row(name, size) for name, size in estimate.held.items()),
        _row("together", estimate.training),
        *(_row(name, size) for name, size in estimate.phases.items()),
    ]
    if (server := context.server_estimate) is not None:
        lines += [
            f"Memory of vLLM on one {'shared' if context.is_colocated else 'server'} GPU in GiB:",
            _row("weights", server.weights),
            _row("KV cache", server.cache),
            _row("CUDA, graphs, activations (rule of thumb)", memory.SERVER_BYTES),
        ]
    return lines


def _row(name: str, size: int) -> str:
    return f"  {name:<42} {size / GIB:>9.3f}"
