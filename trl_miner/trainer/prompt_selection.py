"""`prompt_selection: greso`: which prompts a generation batch passes over, by how they came out before.

Decisions alone, without a model. They follow from the lines of the prompt ledger, so that every process, and a resumed
run, makes the same ones. A prompt that is passed over comes up again in the next pass over the data; none is lost.
"""

import hashlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..methods import SELECTIONS
from ..runs.prompt_ledger import Batch

# Of GRESO's published code, Infini-AI-Lab/GRESO @ b277843, verl/trainer/ppo/ray_trainer.py and its scripts.
_P_START, _P_STEP, _P_LOW, _P_HIGH = 0.5, 0.01, 0.05, 0.95
# Share of the generated prompts that may teach nothing: hard ones are likelier to change.
_TARGETS = {"easy": 0.25 / 3, "hard": 0.5 / 3}
LEAST_KEPT = 0.01  # probability with which the most hopeless prompt is generated: presampling_selector.py


@dataclass
class _Past:
    """What a prompt's visits came to."""

    kind: str = ""  # "easy" or "hard" if that taught nothing
    streak: int = 0  # visits of that kind in a row


class PromptSelection:
    """The decisions of one run.

    Attributes:
        p: Probability to generate a prompt again after one visit that taught nothing, easy or hard.
        num_saved: Rollouts of all prompts passed over so far.
    """

    def __init__(self, *, seed: int, by_correctness: bool = False) -> None:
        """Make the decisions of a run without a past.

        Args:
            seed: Of the draws.
            by_correctness: Whether rollouts that are all right, or all wrong, teach nothing though their rewards
                differ: with dynamic sampling, or behind the gate on correctness.
        """
        self._seed, self._by_correctness = seed, by_correctness
        self.p = dict.fromkeys(("easy", "hard"), _P_START)
        self._pasts: dict[int, _Past] = defaultdict(_Past)
        self._num_batches = 0
        self.num_saved = 0

    def observe(self, batch: Batch) -> None:
        """Take a line of the ledger into account."""
        kinds: list[str] = []
        for number, correct, scored, spread in zip(
            batch.prompts, batch.correct, batch.scored, batch.spread, strict=True
        ):
            is_told_apart = not self._by_correctness and spread != 0
            easy, hard = correct == batch.rollouts, correct == 0 and scored == batch.rollouts
            kind = "" if is_told_apart else "easy" if easy else "hard" if hard else ""
            before = self._pasts[number]
            streak = before.streak + 1 if kind and kind == before.kind else int(bool(kind))
            self._pasts[number] = _Past(kind, streak)
            kinds.append(kind)
        self.num_saved += len(batch.skipped) * batch.rollouts
        self._num_batches += 1
        if kinds and not batch.new:  # behind the first pass over the data, in which nothing is skipped
            for kind, target in _TARGETS.items():
                step = -_P_STEP if kinds.count(kind) / len(kinds) >= target else _P_STEP
                self.p[kind] = min(max(self.p[kind] + step, _P_LOW), _P_HIGH)

    def passes_over(self, number: int, key: str) -> bool:
        """Return whether the batch that comes next passes over a prompt, by its number and key in the ledger."""
        past = self._pasts.get(number)
        if past is None or not past.kind:
            return False
        return self._draw(key) >= max(self.p[past.kind] ** past.streak, LEAST_KEPT)

    @property
    def num_retired(self) -> int:
        """The prompts that are passed over at times."""
        return sum(bool(past.kind) for past in self._pasts.values())

    def metrics(self) -> Mapping[str, float]:
        """Return what is logged of the run so far."""
        found = {"selection/retired": float(self.num_retired), "selection/saved_rollouts": float(self.num_saved)}
        return found | {f"selection/p_{kind}": p for kind, p in self.p.items()}

    def _draw(self, key: str) -> float:
        """Return a number from 0 to 1 that depends on the seed, the prompt and the batch."""
        text = f"{self._seed} {key} {self._num_batches}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") / 2**64


def make_selection(args: Any) -> PromptSelection | None:
    """Return the selection that the settings ask for; None: none."""
    if args.prompt_selection not in SELECTIONS:
        return None
    return PromptSelection(seed=args.seed, by_correctness=args.dynamic_sampling or args.gate_on_correctness)
