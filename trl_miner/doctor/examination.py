"""Run all checks on a recipe, and format their findings and the memory estimate as tables."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ..launching.plan import Plan, make_plan
from ..progress import Progress
from ..recipe import read_recipe
from ..redaction import redact
from . import memory
from .context import FAILED, NOT_CHECKED, OK, WARNING, Check, Context, Finding, failed, not_checked, warning
from .file_checks import FILE_CHECKS, check_model, check_output, check_rewards
from .machine import GIB, Machine
from .memory_checks import MEMORY_CHECKS
from .model_shape import DENSE, UnknownModel, UnusableModel
from .rehearsal import check_trainer
from .setup_checks import SETUP_CHECKS, check_packages, check_quantization, check_settings, check_trackers

CHECKS = {"settings": check_settings} | SETUP_CHECKS | MEMORY_CHECKS | FILE_CHECKS | {"trainer": check_trainer}
NEEDED = {"settings", "model", "rewards"}  # to build a trainer


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
    checks: dict[str, Check] = {"settings": check_settings, "quantization": check_quantization}
    if is_here:
        checks |= {"packages": check_packages, "tracker": check_trackers}
        checks |= {"output_dir": check_output, "model": check_model, "rewards": check_rewards}
    return [finding for about in checks for finding in _run(context, about, checks[about]) if finding.status == FAILED]


def _run_checks(context: Context) -> Iterator[Finding]:
    bad: set[str] = set()
    with Progress("checking", len(CHECKS), unit="checks", leave=False) as progress:
        for about, check in CHECKS.items():
            progress.note = about
            for finding in () if about == "trainer" and bad & NEEDED else _run(context, about, check):
                bad |= {finding.about} if finding.status == FAILED else set()
                yield finding
            progress.advance()


def _run(context: Context, about: str, check: Check) -> list[Finding]:
    try:
        found = check(context)
        findings = [found] if isinstance(found, Finding) else list(found)
    except UnknownModel as error:
        findings = [not_checked(f"{error}.")]
    except UnusableModel:
        findings = []  # the check of the model says so
    except Exception:
        if not context.is_parsed:
            return []  # of a setting that cannot be: the check of the settings says so
        raise
    return [replace(finding, about=finding.about or about) for finding in findings]


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
