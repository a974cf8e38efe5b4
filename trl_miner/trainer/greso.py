"""`prompt_selection: greso`: skip the prompts that had no advantage when they were last sampled (arXiv 2506.02177)."""

from collections.abc import Mapping
from typing import NamedTuple

from ..runs.prompt_ledger import Batch
from .selection import Selection

# Of GRESO's published code, Infini-AI-Lab/GRESO @ b277843, verl/trainer/ppo/ray_trainer.py and its scripts.
_P_START, _P_STEP, _P_LOW, _P_HIGH = 0.5, 0.01, 0.05, 0.95
# Target share of the generated prompts without an advantage: hard ones are likelier to change.
_TARGETS = {"easy": 0.25 / 3, "hard": 0.5 / 3}
LEAST_KEPT = 0.01  # least probability to generate a prompt: presampling_selector.py


class _Past(NamedTuple):
    kind: str = ""  # "easy" or "hard": the prompt had no advantage when it was last sampled
    streak: int = 0  # how often in a row it was of that kind


class Greso(Selection):
    """Skips a prompt with a probability that grows with every visit in a row without an advantage."""

    def __init__(self, seed: int, *, by_correctness: bool = False) -> None:
        super().__init__(seed)
        # Whether rollouts that are all right, or all wrong, have no advantage though their rewards differ: with
        # dynamic sampling, or behind the gate on correctness.
        self._by_correctness = by_correctness
        # Probability to generate a prompt again after it was sampled once without an advantage.
        self.p = dict.fromkeys(("easy", "hard"), _P_START)
        self._pasts: dict[int, _Past] = {}
        self._num_saved = 0  # rollouts of all prompts skipped so far

    def observe(self, batch: Batch) -> None:
        super().observe(batch)
        self._num_saved += len(batch.skipped) * batch.rollouts
        kinds: list[str] = []
        outcomes = zip(batch.prompts, batch.correct, batch.scored, batch.spread, strict=True)
        for number, correct, scored, spread in outcomes:
            kind = self._kind(batch.rollouts, correct, scored, spread)
            before = self._pasts.get(number, _Past())
            self._pasts[number] = _Past(kind, before.streak + 1 if kind and kind == before.kind else int(bool(kind)))
            kinds.append(kind)
        if kinds and not batch.new:  # behind the first pass over the data, in which nothing is skipped
            for kind, target in _TARGETS.items():
                step = -_P_STEP if kinds.count(kind) / len(kinds) >= target else _P_STEP
                self.p[kind] = min(max(self.p[kind] + step, _P_LOW), _P_HIGH)

    def _kind(self, rollouts: int, correct: int, scored: int, spread: float | None) -> str:
        if spread != 0 and not self._by_correctness:
            return ""
        if correct == rollouts:
            return "easy"
        return "hard" if correct == 0 and scored == rollouts else ""

    def skips(self, number: int, key: str) -> bool:
        past = self._pasts.get(number, _Past())
        return bool(past.kind) and self._digest(key) / 2**64 >= max(self.p[past.kind] ** past.streak, LEAST_KEPT)

    def metrics(self) -> Mapping[str, float]:
        num_retired = sum(bool(past.kind) for past in self._pasts.values())
        found = {"selection/retired": float(num_retired), "selection/saved_rollouts": float(self._num_saved)}
        return {**found, **{f"selection/p_{kind}": p for kind, p in self.p.items()}}
