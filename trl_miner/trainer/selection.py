"""`prompt_selection`: which prompts a generation batch leaves out, by how they came out before.

Decisions alone, without a model. They follow from what every process knows, so that all make the
same ones; a checkpoint keeps what they follow from. A prompt that is left out is drawn again in the
next pass over the data; none is lost.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from .config import MinerGRPOConfig


class Outcomes(Protocol):
    """How the prompts of a generation batch came out: so many of `rollouts` each were `correct`,
    or `scored` at all, and their total rewards had a `spread`."""

    @property
    def rollouts(self) -> int: ...
    @property
    def correct(self) -> Sequence[int]: ...
    @property
    def scored(self) -> Sequence[int]: ...
    @property
    def spread(self) -> Sequence[float | None]: ...


class Selection:
    """The decisions of one run, by the keys of its prompts."""

    candidates = 1  # prompts that are drawn for each one that is generated

    def __init__(self, seed: int) -> None:
        self._seed = seed  # of the draws
        self._num_batches = 0
        # keys of the prompts that the batch in progress passes over
        self.left_out: dict[str, None] = {}

    def observe(self, batch: Outcomes, keys: Sequence[str]) -> None:
        """Take a batch into account, with the keys of its prompts; the next batch begins."""
        self._num_batches += 1
        self.left_out.clear()

    def skips(self, key: str) -> bool:
        """Return whether the batch in progress skips a prompt, as long as there are others."""
        return False

    def choose(self, keys: Sequence[str], count: int) -> list[int]:
        """Return the places of those candidates that the batch in progress generates: of the
        smallest ranks."""
        ranks = [self._rank(key) for key in keys]
        chosen = set(sorted(range(len(keys)), key=ranks.__getitem__)[:count])
        self.left_out |= dict.fromkeys(key for place, key in enumerate(keys) if place not in chosen)
        return sorted(chosen)

    def metrics(self) -> Mapping[str, float]:
        """Return what is logged with a batch."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return what the decisions follow from, as JSON."""
        return {"batches": self._num_batches}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Decide as the selection that has returned this state."""
        self._num_batches = state["batches"]
        self.left_out.clear()

    def _rank(self, key: str) -> float:
        return 0.0

    def _digest(self, key: str) -> int:
        """Return 64 bits that depend on the seed, the prompt and the batch."""
        text = f"{self._seed} {key} {self._num_batches}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


class Greso(Selection):
    """Skips a prompt with a probability that grows with every visit in a row without an advantage
    (arXiv 2506.02177).

    Source: Infini-AI-Lab/GRESO @ b277843, verl/trainer/ppo/ray_trainer.py, presampling_selector.py
        and its scripts.
    """

    P_START, P_STEP, P_LOW, P_HIGH = 0.5, 0.01, 0.05, 0.95
    # Target share of the generated prompts without an advantage: hard ones are likelier to change.
    TARGETS = {"easy": 0.25 / 3, "hard": 0.5 / 3}
    LEAST_KEPT = 0.01  # least probability to generate a prompt

    def __init__(self, seed: int, *, by_correctness: bool = False) -> None:
        super().__init__(seed)
        # Whether rollouts that are all right, or all wrong, have no advantage though their rewards
        # differ: with dynamic sampling, or behind the gate on correctness.
        self._by_correctness = by_correctness
        # Probability to generate a prompt again after it was sampled once without an advantage.
        self.p = dict.fromkeys(self.TARGETS, self.P_START)
        # By prompt, "easy" or "hard" if it had no advantage when it was last sampled, and how often
        # in a row.
        self.pasts: dict[str, tuple[str, int]] = {}

    def observe(self, batch: Outcomes, keys: Sequence[str]) -> None:
        super().observe(batch, keys)
        has_new = any(key not in self.pasts for key in keys)
        kinds: list[str] = []
        for key, correct, scored, spread in zip(
            keys, batch.correct, batch.scored, batch.spread, strict=True
        ):
            kind = self._kind(batch.rollouts, correct, scored, spread)
            before, streak = self.pasts.get(key, ("", 0))
            self.pasts[key] = kind, (streak if kind == before else 0) + bool(kind)
            kinds.append(kind)
        # behind the first pass over the data, in which nothing is skipped
        if kinds and not has_new:
            for kind, target in self.TARGETS.items():
                step = -self.P_STEP if kinds.count(kind) / len(kinds) >= target else self.P_STEP
                self.p[kind] = min(max(self.p[kind] + step, self.P_LOW), self.P_HIGH)

    def _kind(self, rollouts: int, correct: int, scored: int, spread: float | None) -> str:
        if spread != 0 and not self._by_correctness:
            return ""
        if correct == rollouts:
            return "easy"
        return "hard" if correct == 0 and scored == rollouts else ""

    def skips(self, key: str) -> bool:
        kind, streak = self.pasts.get(key, ("", 0))
        if not kind or self._digest(key) / 2**64 < max(self.p[kind] ** streak, self.LEAST_KEPT):
            return False
        self.left_out[key] = None
        return True

    def metrics(self) -> Mapping[str, float]:
        return {f"selection/p_{kind}": p for kind, p in self.p.items()}

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "p": dict(self.p), "pasts": dict(self.pasts)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.p = dict(state["p"])
        self.pasts = {key: (kind, streak) for key, (kind, streak) in state["pasts"].items()}


class Thompson(Selection):
    """Draws a pass rate for each candidate from its posterior, Beta(1 + correct, 1 + wrong rollouts
    so far), and ranks the candidates by their distance from one half (MoPPS).

    Source: arXiv 2507.04632; thu-rllab/MoPPS @ a883f51, `recipe/ours/mopps.py` with its strategy
        "topk". How many candidates there are for each prompt, its configuration leaves open; 4 is
        our choice.
    """

    candidates = 4
    TARGET = 0.5  # pass rate: of the published code, as is the prior of Beta(1, 1) without decay

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._correct: Counter[str] = Counter()
        self._wrong: Counter[str] = Counter()

    def observe(self, batch: Outcomes, keys: Sequence[str]) -> None:
        super().observe(batch, keys)
        for key, correct, scored in zip(keys, batch.correct, batch.scored, strict=True):
            self._correct[key] += correct
            self._wrong[key] += scored - correct

    def state_dict(self) -> dict[str, Any]:
        counts = {"correct": dict(self._correct), "wrong": dict(self._wrong)}
        return {**super().state_dict(), **counts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._correct, self._wrong = Counter(state["correct"]), Counter(state["wrong"])

    def _rank(self, key: str) -> float:
        rate = np.random.default_rng(self._digest(key)).beta(
            1 + self._correct[key], 1 + self._wrong[key]
        )
        return float(abs(rate - self.TARGET))


def make_selection(args: MinerGRPOConfig) -> Selection | None:
    """Return the selection that the settings ask for; None: none."""
    if args.prompt_selection == "greso":
        return Greso(args.seed, by_correctness=args.dynamic_sampling or args.gate_on_correctness)
    return Thompson(args.seed) if args.prompt_selection == "thompson" else None
