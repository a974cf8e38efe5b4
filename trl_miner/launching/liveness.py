"""When each part of a run was last seen alive, and the reason to end the run if that was too long ago."""

from typing import Any

from ..heartbeat import GENERATION

SERVER = ("server", 0)  # beside ("process", rank): it answers; and ("progress", rank): its main thread moves


class SignsOfLife:
    """The time of the last sign of life from the server and from each process, with its last state by rank."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.states: dict[int, dict[str, Any]] = {}
        self._seen: dict[Any, float] = {}
        self._values: dict[Any, Any] = {}

    def observe(self, source: Any, is_alive: bool, now: float) -> None:
        """Note an observation. Time begins to run with the first one, whatever it showed."""
        if is_alive or source not in self._seen:
            self._seen[source] = now

    def has_changed(self, source: Any, value: Any) -> bool:
        """Return whether a value differs from the one at the last call."""
        old, self._values[source] = self._values.get(source), value
        return old != value

    def forgive(self, seconds: float) -> None:
        """Leave out time in which nothing could be observed."""
        if seconds > 0:
            self._seen = {source: seen + seconds for source, seen in self._seen.items()}

    def is_idle(self, now: float) -> bool:
        """Return whether no process has made progress for so long, whether or not all are there."""
        return min((now - seen for source, seen in self._seen.items() if source[0] == "progress"), default=0.0) >= (
            self.limit
        )

    def reason_to_end(self, now: float, server_url: str | None, *, ends_idle: bool = True) -> str | None:
        """Return why the run must end, or None; with `ends_idle`, also where all that answers makes no progress."""
        lost = {source: now - seen for source, seen in self._seen.items() if source[0] != "progress"}
        if max(lost.values(), default=0.0) < self.limit and not (ends_idle and self.is_idle(now)):
            return None
        # Processes that wait for a lost one stopped a little after it, so look at half the limit for the culprit.
        for kind, rank in sorted(lost):
            if kind == "process" and lost[kind, rank] >= self.limit / 2:
                others = ", ".join(f"process {r} is {self._place(r)}" for r in sorted(self.states) if r != rank)
                return (
                    f"Process {rank} does not answer: it was stopped, or is dead. It was last seen "
                    f"{self._place(rank)}; {others}."
                )
        if lost.get(SERVER, 0.0) >= self.limit / 2:
            return f"The vLLM server at {server_url} does not answer; process 0 was {self._place(0)}."
        return self.idleness(server_url)

    def idleness(self, server_url: str | None) -> str:
        """Return where the processes are that make no progress."""
        places = ", ".join(f"process {rank} {self._place(rank)}" for rank in sorted(self.states))
        is_waiting_for_server = server_url is not None and self.states[0]["phase"] == GENERATION
        server = f" The vLLM server at {server_url} answers, but generates nothing." * is_waiting_for_server
        return f"No process makes progress: {places}.{server}"

    def lost_processes(self, now: float) -> list[dict[str, Any]]:
        """Return the last states of the processes that do not answer."""
        lost = [rank for (kind, rank), seen in self._seen.items() if kind == "process" and now - seen > self.limit / 2]
        return [self.states[rank] for rank in lost if rank in self.states]

    def _place(self, rank: int) -> str:
        state = self.states.get(rank)
        return "before its first step" if state is None else f"in phase '{state['phase']}', {state['where']}"
