"""How the prompts of a run came out: the kind of each visit in its ledger, and of each prompt at its last one.

# V visits that could be judged, B generation batches, P prompts that the ledger names
"""

from dataclasses import dataclass

import numpy as np

from ..prompt_kinds import PromptKind
from .prompt_ledger import Ledger

ALL_RIGHT, MIXED, ALL_WRONG = range(3)
KINDS = tuple(kind.words for kind in (PromptKind.ALL_RIGHT, PromptKind.MIXED, PromptKind.ALL_WRONG))
UNSEEN = -1


@dataclass(frozen=True)
class Outcomes:
    """The visits of a ledger in order, without those that the verifier left unjudged, which say nothing of a prompt.

    Attributes:
        prompts_V: Number of the prompt.
        batches_V: Number of the generation batch, from 0.
        kinds_V: Place in `KINDS`.
        correct_V: Right rollouts.
        rollouts_V: Rollouts.
        last_P: Kind of each prompt at its last visit; `UNSEEN` where no visit could be judged.
        counts_BK: Prompts of each kind at their last visit so far, after each batch.
    """

    prompts_V: np.ndarray
    batches_V: np.ndarray
    kinds_V: np.ndarray
    correct_V: np.ndarray
    rollouts_V: np.ndarray
    last_P: np.ndarray
    counts_BK: np.ndarray


def outcomes_of(ledger: Ledger) -> Outcomes:
    """Return how the prompts of a ledger came out.

    A prompt is mixed where some rollouts are right and some wrong. One that is not, with rollouts that the verifier
    left without a reward, is unjudged, as for `groups/unscorable`.
    """
    visits = ledger.visits()
    correct, scored, rollouts = (visits[name] for name in ("correct", "scored", "rollouts"))
    kinds = np.select([(correct > 0) & (correct < scored), correct > 0], [MIXED, ALL_RIGHT], ALL_WRONG)
    batches = np.repeat(np.arange(len(ledger.batches)), [len(batch.prompts) for batch in ledger.batches])
    is_judged = (kinds == MIXED) | (scored == rollouts)
    prompts, batches, kinds = visits["prompt"][is_judged], batches[is_judged], kinds[is_judged]
    last = np.full(len(ledger.keys), UNSEEN)
    last[prompts] = kinds  # of several visits numpy keeps the last
    return Outcomes(
        prompts, batches, kinds, correct[is_judged], rollouts[is_judged], last,
        _counts(prompts, batches, kinds, len(ledger.batches)),
    )  # fmt: skip


def _counts(prompts_V: np.ndarray, batches_V: np.ndarray, kinds_V: np.ndarray, num_batches: int) -> np.ndarray:
    """Return (B, kinds) prompts of each kind: each visit takes its prompt out of the kind that it had before."""
    order = np.argsort(prompts_V, kind="stable")
    is_again = np.flatnonzero(np.diff(prompts_V[order]) == 0)
    size = num_batches * len(KINDS)
    added = np.bincount(batches_V * len(KINDS) + kinds_V, minlength=size)
    taken = np.bincount(batches_V[order[is_again + 1]] * len(KINDS) + kinds_V[order[is_again]], minlength=size)
    return np.cumsum((added - taken).reshape(num_batches, len(KINDS)), axis=0)
