"""Run all checks on a recipe, and format their findings and the memory estimate as tables."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ..common.progress import Progress
from ..common.redaction import redact
from ..launching.plan import Plan, make_plan
from ..recipe.parsing import read_recipe
from . import checks, memory
from .context import (
    FAILED,
    NOT_CHECKED,
    OK,
    WARNING,
    Check,
    Context,
    Finding,
    Machine,
    failed,
    warning,
)
from .memory import GIB
from .rehearsal import check_trainer, load

# What would end the training at its start, as far as that is quickly found out.
START: dict[str, Check] = {
    "rules": checks.check_rules,
    "packages": checks.check_packages,
    "output_dir": checks.check_output,
    "rewards": checks.check_rewards,
    "model": checks.check_model,
}
# These need the model's sizes.
MEMORY: dict[str, Check] = {
    "memory": checks.check_training_memory,
    "vLLM memory": checks.check_server_memory,
}


def examine(
    recipe: str | Path, overrides: Sequence[str], machine: Machine
) -> tuple[list[Finding], Context | None]:
    """Run every check. Return the findings and their context, which is None if no plan can be
    made."""
    settings = read_recipe(recipe, overrides)
    try:
        plan = make_plan(recipe, overrides, num_gpus=0 if settings.use_cpu else len(machine.gpus))
    except ValueError as error:
        return [failed(str(error), "plan")], None
    context = Context(plan, machine)
    notes = [warning(note, "note") for note in plan.notes]
    with Progress("checking", unit="", leave=False):
        return [*notes, *_run_checks(context)], context


def _run_checks(context: Context) -> Iterator[Finding]:
    findings = _run(context, {"settings": checks.check_settings})
    yield from findings
    if _failed(findings):
        return
    findings = _run(context, {"GPUs": checks.check_gpus} | START)
    yield from findings
    if any(finding.about == "model" and finding.status == OK for finding in findings):
        yield from _run(context, MEMORY)
        if "rewards" not in _failed(findings):
            yield from _run(context, {"trainer": check_trainer})


def refusals(plan: Plan, machine: Machine | None = None, *, is_here: bool = True) -> list[Finding]:
    """Return why the training of a plan would fail at its start, as far as that is quickly found
    out.

    It looks at no GPU and no server; of a plan for another machine only at its settings, and at the
    memory of one that is described.
    """
    context = Context(plan, machine or Machine("this machine", (), None))
    findings = _run(context, {"settings": checks.check_settings})
    if not _failed(findings):
        data: dict[str, Check] = {"data": lambda context: load(context)[1]}
        rules: dict[str, Check] = {"rules": checks.check_rules}
        model: dict[str, Check] = {"GPUs": checks.check_gpus, "model": checks.check_model}
        findings = _run(context, START | data if is_here else rules | (model if machine else {}))
        if machine and any(one.about == "model" and one.status == OK for one in findings):
            findings += _run(context, MEMORY)
    return [finding for finding in findings if finding.status == FAILED]


def _run(context: Context, some: dict[str, Check]) -> list[Finding]:
    findings: list[Finding] = []
    for about, check in some.items():
        found = check(context)
        found = [found] if isinstance(found, Finding) else list(found)
        findings += [replace(finding, about=finding.about or about) for finding in found]
    return findings


def _failed(findings: Sequence[Finding]) -> set[str]:
    return {finding.about for finding in findings if finding.status == FAILED}


def table(findings: Sequence[Finding]) -> list[str]:
    """Return one line for each finding: status, subject, explanation; and their number by
    status."""
    width = max(len(finding.about) for finding in findings)
    count = Counter(finding.status for finding in findings)
    below = "\n" + " " * (width + 15)
    rows = [
        f"{finding.status:<11}  {finding.about:<{width}}  {redact(finding.text)}".replace(
            "\n", below
        )
        for finding in findings
    ]
    return [
        *rows,
        (
            f"{count[OK]} ok, {count[WARNING]} warnings, {count[FAILED]} failed,"
            f" {count[NOT_CHECKED]} not checked."
        ),
    ]


def memory_table(context: Context) -> list[str]:
    """Return the estimate of the training by component, in GiB."""
    run = context.run
    sizes = memory.estimate_training(context.shape, run)
    return [
        (
            f"Memory of one training process in GiB ({run.sharding}, {run.processes} process(es),"
            f" {run.rows} rollouts of {run.tokens} tokens):"
        ),
        *(
            f"  {name:<42} {size / GIB:>9.3f}"
            for name, size in (sizes | {"together": sum(sizes.values())}).items()
        ),
    ]
