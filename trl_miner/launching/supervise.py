"""Two child processes that end together, whatever ends first: a signal, one of them, or this one."""

from .plan import Plan


def supervise(plan: Plan) -> int:
    """Run a plan to its end. Returns the training's exit code, 128 + N for a signal N, or 1 where
    the server ended first."""
    raise NotImplementedError


def die_with_parent() -> None:
    """Have Linux end this process by SIGTERM when its parent dies, by SIGKILL too."""
