"""The progress of a comparison: the step and the speed of each run in progress, and the time left for all runs."""

import heapq
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from ..progress import Progress, duration, rate
from ..runs.steps import read_steps


@dataclass
class Pace:
    """What has been seen of a run: steps and moments, in seconds of one clock. Resumed, it begins at a later step."""

    name: str
    method: str
    folder: Path
    begun: float
    steps: int = 0  # planned; 0: not known yet
    first_step: int = 0
    first: float | None = None  # when the first step was seen; None: not yet
    step: int = 0
    last: float = 0.0  # when the latest step was seen
    tail: float | None = None  # seconds from the last step to the end; None: not there yet

    def see(self, step: int, steps: int, now: float) -> None:
        """Note the step at which the run is."""
        if self.first is None:
            self.first, self.first_step, self.last = now, step, now
        elif step > self.step:
            self.last = now
        self.step, self.steps = step, steps

    @property
    def per_step(self) -> float | None:
        """Seconds of a step, scores included; None: not known yet."""
        if self.first is None or self.step == self.first_step:
            return None if self.tail is None else 0.0  # so short that the head held all of its steps
        return (self.last - self.first) / (self.step - self.first_step)

    @property
    def head(self) -> float | None:
        """Seconds until training began: imports, the model, the scores before training; None: not there yet."""
        return None if self.first is None else self.first - self.begun


class Forecast:
    """Foretells when all runs will have ended, from those that have been seen.

    A run takes its head, its steps and its tail. What it has not shown yet is taken from runs of the same recipe, else
    from all runs; until one has ended, the tail is taken to be as long as the head, as both score the model.
    """

    def __init__(self, waiting: Mapping[int, str], jobs: int) -> None:
        self.waiting, self.jobs = dict(waiting), jobs  # methods by the runs' numbers
        self.running: dict[int, Pace] = {}
        self._ended: list[Pace] = []

    def begin(self, number: int, name: str, folder: Path, now: float) -> None:
        """Note that a run begins."""
        self.running[number] = Pace(name, self.waiting.pop(number), folder, now)

    def end(self, number: int, now: float) -> None:
        """Note that a run has ended."""
        pace = self.running.pop(number)
        if pace.steps and pace.step == pace.steps:  # else it failed
            pace.tail = now - pace.last
        self._ended.append(pace)

    def seconds_left(self, now: float) -> float | None:
        """Return the seconds until all runs have ended; None: no run has shown its speed yet."""
        if all(pace.per_step is None for pace in self._seen):
            return None
        ends = [self._rest(pace, now) for pace in list(self.running.values())]
        queue = [*[0.0] * (self.jobs - len(ends)), *ends]
        heapq.heapify(queue)
        for method in list(self.waiting.values()):  # each begins where one ends first
            rest = self._rest(Pace("", method, Path(), now), now)
            heapq.heappush(queue, heapq.heappop(queue) + rest)
        return max(queue)

    @property
    def _seen(self) -> list[Pace]:
        return [*self._ended, *self.running.values()]

    def _rest(self, pace: Pace, now: float) -> float:
        """Return the seconds that a run still takes."""
        head = self._known(pace, lambda seen: seen.head)
        tail = self._known(pace, lambda seen: seen.tail, head)
        steps = self._known(pace, lambda seen: seen.steps or None)
        rest = (steps - pace.step) * self._known(pace, lambda seen: seen.per_step) + tail
        if pace.first is None:
            return max(0.0, head - (now - pace.begun)) + rest
        return max(0.0, rest - (now - pace.last))

    def _known(self, pace: Pace, measure: Callable[[Pace], float | None], default: float = 0.0) -> float:
        """Return what the run itself shows, else the mean of runs of its recipe, else of all."""
        for group in ([pace], [seen for seen in self._seen if seen.method == pace.method], self._seen):
            if values := [value for seen in group if (value := measure(seen)) is not None]:
                return mean(values)
        return default


class ComparisonProgress(Progress):
    """Shows how many runs are done, where those in progress are, and the time left for all.

    "run 3 of 6, 12 min 3 s left in all: grpo seed 3, step 12 of 150, 2.5 s each"
    """

    def __init__(self, total: int, waiting: Mapping[int, str], jobs: int) -> None:
        super().__init__("training", total, unit="runs", initial=total - len(waiting), leave=False)
        self._forecast = Forecast(waiting, jobs)

    def begin(self, number: int, name: str, folder: Path) -> None:
        """Note that a run begins, with its number from 0."""
        self._forecast.begin(number, name, folder, time.monotonic())

    def end(self, number: int) -> None:
        """Note that a run has ended."""
        self._look()
        self._forecast.end(number, time.monotonic())
        self.done += 1
        self._look()

    def _look(self) -> None:
        """Look where the runs in progress are; the bar grows with their steps."""
        running = list(self._forecast.running.values())
        for pace in running:
            if seen := read_steps(pace.folder):
                pace.see(*seen, time.monotonic())
        if self._bar is not None:
            self._bar.n = self.done + sum(pace.step / pace.steps for pace in running if pace.steps)

    def state(self, ended: bool = False) -> str:
        """Return the progress in words, as the class shows them."""
        running = sorted(self._forecast.running.items())
        if not running:
            return super().state(ended)
        numbers = ", ".join(str(number + 1) for number, _ in running)
        left = self._forecast.seconds_left(time.monotonic())
        time_left = "" if left is None else f", {duration(left)} left in all"
        places = "; ".join(f"{pace.name}, {_place(pace)}" for _, pace in running)
        return f"run{'s' * (len(running) > 1)} {numbers} of {self.total}{time_left}: {places}"

    def _tick(self) -> None:
        self._look()
        super()._tick()


def _place(pace: Pace) -> str:
    if pace.first is None:
        return "before its first step"
    speed = f", {rate(1 / pace.per_step)}" if pace.per_step else ""
    return f"step {pace.step} of {pace.steps}{speed}"
