"""`prompt_selection: greso`: which prompts a generation batch skips, by how they came out before (arXiv 2506.02177).

Decisions alone, without a model. They follow from the lines of the prompt ledger, so that every process, and a resumed
run, makes the same ones. A skipped prompt is drawn again in the next pass over the data; none is lost.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..methods import SELECTIONS
from ..runs.prompt_ledger import Batch

# Of GRESO's published code, Infini-AI-Lab/GRESO @ b277843, verl/trainer/ppo/ray_trainer.py and its scripts.
_P_START, _P_STEP, _P_LOW, _P_HIGH = 0.5, 0.01, 0.05, 0.95
# Target share of the generated prompts without an advantage: hard ones are likelier to change.
_TARGETS = {"easy": 0.25 / 3, "hard": 0.5 / 3}
LEAST_KEPT = 0.01  # least probability to generate a prompt: presampling_selector.py


class _Past(NamedTuple):
    kind: str = ""  # "easy" or "hard": the prompt had no advantage when it was last sampled
    streak: int = 0  # how often in a row it was of that kind


class Greso:
    """The decisions of one run."""

    def __init__(self, *, seed: int, by_correctness: bool = False) -> None:
        self._seed = seed  # of the draws
        # Whether rollouts that are all right, or all wrong, have no advantage though their rewards differ: with
        # dynamic sampling, or behind the gate on correctness.
        self._by_correctness = by_correctness
        # Probability to generate a prompt again after it was sampled once without an advantage.
        self.p = dict.fromkeys(("easy", "hard"), _P_START)
        self._pasts: dict[int, _Past] = {}
        self._num_batches = 0
        self.num_saved = 0  # rollouts of all prompts skipped so far

    def observe(self, batch: Batch) -> None:
        """Take a line of the ledger into account."""
        kinds: list[str] = []
        outcomes = zip(batch.prompts, batch.correct, batch.scored, batch.spread, strict=True)
        for number, correct, scored, spread in outcomes:
            kind = self._kind(batch.rollouts, correct, scored, spread)
            before = self._pasts.get(number, _Past())
            self._pasts[number] = _Past(kind, before.streak + 1 if kind and kind == before.kind else int(bool(kind)))
            kinds.append(kind)
        self.num_saved += len(batch.skipped) * batch.rollouts
        self._num_batches += 1
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
        """Return whether the next batch skips a prompt, by its number and key in the ledger."""
        past = self._pasts.get(number, _Past())
        return bool(past.kind) and self._draw(key) >= max(self.p[past.kind] ** past.streak, LEAST_KEPT)

    def metrics(self) -> Mapping[str, float]:
        """Return what is logged of the run so far."""
        num_retired = sum(bool(past.kind) for past in self._pasts.values())
        found = {"selection/retired": float(num_retired), "selection/saved_rollouts": float(self.num_saved)}
        return found | {f"selection/p_{kind}": p for kind, p in self.p.items()}

    def _draw(self, key: str) -> float:
        """Return a number from 0 to 1 that depends on the seed, the prompt and the batch."""
        text = f"{self._seed} {key} {self._num_batches}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") / 2**64


def make_selection(args: Any) -> Greso | None:
    """Return the selection that the settings ask for; None: none."""
    if args.prompt_selection not in SELECTIONS:
        return None
    return Greso(seed=args.seed, by_correctness=args.dynamic_sampling or args.gate_on_correctness)
