"""`prompt_selection: thompson`: of several candidates, generate those whose pass rate is likeliest near one half
(MoPPS, arXiv 2507.04632)."""

from collections import Counter
from collections.abc import Mapping

import numpy as np

from ..runs.prompt_ledger import Batch
from .selection import Selection

TARGET = 0.5  # pass rate: of the published code, as is the prior of Beta(1, 1) without decay


class Thompson(Selection):
    """Draws a pass rate for each candidate from its posterior, Beta(1 + correct, 1 + wrong rollouts so far), and ranks
    the candidates by their distance from one half.

    Source: arXiv 2507.04632; thu-rllab/MoPPS @ a883f51, `recipe/ours/mopps.py` with its strategy "topk". How many
        candidates there are for each prompt, its configuration leaves open; 4 is our choice.
    """

    candidates = 4

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._correct: Counter[int] = Counter()
        self._wrong: Counter[int] = Counter()

    def observe(self, batch: Batch) -> None:
        super().observe(batch)
        for number, correct, scored in zip(batch.prompts, batch.correct, batch.scored, strict=True):
            self._correct[number] += correct
            self._wrong[number] += scored - correct

    def rank(self, number: int | None, key: str) -> float:
        correct, wrong = (0, 0) if number is None else (self._correct[number], self._wrong[number])
        rate = np.random.default_rng(self._digest(key)).beta(1 + correct, 1 + wrong)
        return float(abs(rate - TARGET))

    def metrics(self) -> Mapping[str, float]:
        """Return the mean of the posteriors' means over the prompts seen so far."""
        seen = [
            (1 + self._correct[n]) / (2 + self._correct[n] + self._wrong[n])
            for n in self._correct.keys() | self._wrong.keys()
        ]
        return {"selection/pass_rate": float(np.mean(seen))} if seen else {}
