"""Why a run does not learn: causes that its own numbers show, the gravest first.

A rule sees the rollouts of a run, its log, or both, and says nothing where they do not carry it. It
compares the first quarter of the steps with the last one. A run whose answers got better has no
causes. The thresholds are our choice, tested on runs that were made for each rule.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ..prompt_kinds import PromptKind
from .prompt_outcomes import Outcomes
from .rollout_lines import REWARD

if TYPE_CHECKING:
    from pandas import DataFrame, Series

LEAST_GROUPS = 12  # prompts, times visited, before anything is said
_SECOND_READING = 120  # wrong answers that the verifier reads again
_HELD = 0.05  # right answers have to rise by so much for a run that learns


@dataclass(frozen=True)
class Cause:
    """A reason why a run does not learn.

    Attributes:
        key: Its name in logs and tests.
        title: What it is.
        evidence: What the run shows, with its numbers.
        next_step: What to do.
        weight: The share of the rollouts that it takes, by which causes are ranked.
    """

    key: str
    title: str
    evidence: str
    next_step: str
    weight: float

    def __str__(self) -> str:
        return f"{self.title}. {self.evidence} Next: {self.next_step}"


@dataclass(frozen=True)
class Quarter:
    """Mean of a number over a quarter of the steps, its standard error, and how many there are."""

    mean: float
    error: float
    count: int


@dataclass
class Evidence:
    """What is known of a run: its rollouts, if they were kept, and its log by metric, (n, 2) each."""

    outcomes: Outcomes | None
    logs: Mapping[str, np.ndarray]

    def values(self, metric: str) -> np.ndarray:
        """Return the finite values of a metric in the log, in order."""
        values = self.logs.get(metric, np.empty((0, 2)))[:, 1]
        return values[np.isfinite(values)]

    def logged(self, metric: str) -> tuple[float, float] | None:
        """Return the means of a metric over the first and the last quarter of its logs, at least
        four; None: it has no such."""
        values = self.values(metric)
        size = len(values) // 4
        return (values[:size].mean(), values[-size:].mean()) if size else None

    @property
    def with_gradient(self) -> float:
        """The smaller share of rollouts with a gradient, of the first and the last quarter."""
        used, zero = self.logged("rollouts/grpo"), self.logged("frac_reward_zero_std")
        return min(used) if used else 1 - max(zero) if zero else np.nan

    @cached_property
    def groups(self) -> "DataFrame":
        """The groups of the last half of the steps."""
        assert self.outcomes is not None
        groups = self.outcomes.groups
        return groups[groups["step"] >= groups["step"].median()]

    @cached_property
    def rollouts(self) -> "DataFrame":
        """The rollouts of the last half of the steps."""
        assert self.outcomes is not None
        rollouts = self.outcomes.rollouts
        return rollouts[rollouts["step"] >= self.outcomes.groups["step"].median()]

    @cached_property
    def has_rollouts(self) -> bool:
        return (
            self.outcomes is not None
            and len(self.outcomes.rollouts) > 0
            and len(self.groups) >= LEAST_GROUPS
        )

    @cached_property
    def has_verdicts(self) -> bool:
        """Whether it is known of enough prompts whether their answers are right."""
        return (
            self.outcomes is not None
            and len(self.groups) >= LEAST_GROUPS
            and self.groups["scored"].sum() > 0
        )

    def share(self, kind: PromptKind) -> float:
        """Return the share of the prompts of the last half that are of a kind."""
        return float((self.groups["kind"] == kind).mean()) if self.has_verdicts else np.nan

    @cached_property
    def pass_rate(self) -> float:
        """The share of right rollouts of the last half; NaN: not known."""
        scored = self.groups["scored"].sum() if self.has_verdicts else 0
        return float(self.groups["correct"].sum() / scored) if scored else np.nan

    def quarters(self, table: "DataFrame", values: "Series") -> tuple[Quarter, Quarter]:
        """Return the first and the last quarter of the steps of a number of each row."""
        low, high = table["step"].quantile([0.25, 0.75])
        found = []
        for chosen in (table["step"] <= low, table["step"] >= high):
            own = values[chosen].dropna()
            error = own.std() / np.sqrt(len(own)) if len(own) > 1 else np.inf
            found.append(Quarter(own.mean(), error, len(own)))
        return found[0], found[1]

    @cached_property
    def right(self) -> tuple[Quarter, Quarter] | None:
        """The share of right rollouts in the first and the last quarter; None: not known."""
        if not self.has_verdicts or self.outcomes is None:
            return None
        groups = self.outcomes.groups
        return self.quarters(groups, groups["correct"] / groups["scored"].replace(0, np.nan))

    @cached_property
    def learned(self) -> bool:
        """Whether the share of right rollouts rose, by more than chance."""
        return self.right is not None and _rose(*self.right, least=_HELD)


def _rose(first: Quarter, last: Quarter, least: float) -> bool:
    rise = last.mean - first.mean
    return bool(rise >= least and rise > 3 * np.hypot(first.error, last.error))


def find_causes(evidence: Evidence) -> list[Cause]:
    """Return why a run does not learn, the gravest cause first; empty: it learns, or its numbers
    show no cause."""
    if evidence.learned:
        return []
    causes = [cause for rule in RULES for cause in rule(evidence)]
    return sorted(causes, key=lambda cause: -cause.weight)


def _change(means: tuple[float, float]) -> str:
    return f"from {means[0]:.3g} to {means[1]:.3g}"


def _percent(share: float) -> str:
    return f"{share:.0%}" if share > 0.005 or share == 0 else f"{share:.2%}"


def _no_right_answer(run: Evidence) -> Iterator[Cause]:
    share = run.share(PromptKind.ALL_WRONG)
    # a run that had right answers and lost them has another cause
    if share >= 0.95 and run.pass_rate < 0.01 and run.right and run.right[0].mean < 0.05:
        right, scored = int(run.groups["correct"].sum()), int(run.groups["scored"].sum())
        yield Cause(
            "no_right_answer",
            "No right answer",
            f"{right:,} of the last {scored:,} rollouts are right: {_percent(share)} of the prompts"
            " are all wrong, and equal rewards give no gradient.",
            "train on easier problems, or fine-tune on solutions first; and see with trl-miner"
            " verify whether right answers are accepted at all.",
            0.9 * share,  # cuts and rejected answers, which explain it, come first
        )


def _all_right_already(run: Evidence) -> Iterator[Cause]:
    share = run.share(PromptKind.ALL_RIGHT)
    if share >= 0.8:
        yield Cause(
            "all_right",
            "All right already",
            f"In the last half {_percent(share)} of the prompts were answered right by all"
            " rollouts, which gives GRPO no gradient.",
            "train on harder problems; all_right: miner of this package lets such prompts train.",
            share,
        )


def _equal_rewards(run: Evidence) -> Iterator[Cause]:
    """Where no rollouts were kept, the log says how many groups had equal rewards."""
    zero, reward = run.logged("frac_reward_zero_std"), run.logged("reward")
    if zero and reward and zero[1] >= 0.8 and not run.has_verdicts:
        yield Cause(
            "equal_rewards",
            "The rollouts of a prompt have equal rewards",
            f"So it was for {_percent(zero[1])} of the prompts in the last quarter, and their mean"
            f" reward was {reward[1]:.3g}: there is no gradient.",
            "see whether they are all wrong or all right: log_completions=True keeps the rollouts.",
            zero[1],
        )


def _cut(run: Evidence) -> Iterator[Cause]:
    cut = run.logged("completions/clipped_ratio")
    share = cut[1] if cut else np.nan
    evidence = f"{_percent(share)} of the rollouts of the last quarter reached the limit"
    limit = run.logged("completions/max_length")
    evidence += f" of {limit[1]:.0f} tokens." if limit else "."
    if run.has_rollouts and run.rollouts["truncated"].notna().any():
        share, evidence = _by_cut(run.rollouts)
    at_first = run.logs["completions/clipped_ratio"][0, 1] if cut else share
    if at_first < 0.1:
        evidence += f" At first it was {_percent(at_first)}, so something else made them longer."
    if share >= 0.25 and not run.pass_rate > 0.8:
        yield Cause(
            "cut",
            "Answers are cut off",
            evidence,
            "raise max_completion_length, or ask for shorter answers.",
            float(share) * (0.95 if at_first >= 0.1 else 0.5),
        )


def _by_cut(rollouts: "DataFrame") -> tuple[float, str]:
    """Return the share of rollouts that are cut, 0 where these are right as often as others."""
    share = float(rollouts["truncated"].mean())
    by = rollouts["correct"].groupby(rollouts["truncated"] > 0).mean().dropna()
    evidence = f"{_percent(share)} of the rollouts of the last half were cut off."
    if len(by) < 2:
        return share, evidence
    right = f" {_percent(by[True])} of these are right, of the others {_percent(by[False])}."
    return share if by[True] < by[False] else 0.0, evidence + right


def _rejected(run: Evidence) -> Iterator[Cause]:
    if not run.has_rollouts or not run.has_verdicts or run.outcomes is None:
        return
    wrong = run.outcomes.rollouts[run.outcomes.rollouts["correct"] == 0]
    shares = [_accepted_elsewhere(run.outcomes, wrong), _accepted_by_us(run.outcomes)]
    share, evidence = max(shares)
    if not share and run.pass_rate < 0.05 and run.share(PromptKind.ALL_WRONG) > 0.8:
        share, evidence = _agreed(run)
    if share:
        yield Cause(
            "rejected",
            "Right, but not accepted",
            evidence,
            "look at these answers: trl-miner verify FILE lists disagreements first. Correct the"
            " reward function, or say in the prompt how to write the answer.",
            share * float(len(wrong) / len(run.outcomes.rollouts)),
        )


def _accepted_elsewhere(outcomes: Outcomes, wrong: "DataFrame") -> tuple[float, str]:
    accepted = outcomes.rollouts.query("correct == 1 and answer != 0")
    same = wrong.merge(accepted[["prompt", "answer"]].drop_duplicates())
    if len(same) < 10 or len(same) < 0.2 * len(wrong):
        return 0.0, ""
    return len(same) / len(wrong), (
        f"{_percent(len(same) / len(wrong))} of the {len(wrong):,} wrong rollouts end with an answer"
        " that was accepted in another rollout of the same prompt."
    )


def _accepted_by_us(outcomes: Outcomes) -> tuple[float, str]:
    count, read = second_reading(outcomes.samples)
    if count < 5 or count < 0.2 * read:
        return 0.0, ""
    return count / read, f"trl-miner's verifier accepts {count} of {read} sampled wrong answers."


def _agreed(run: Evidence) -> tuple[float, str]:
    """Return evidence where no answer is accepted: the rollouts of a prompt agree on one."""
    rows = run.rollouts[run.rollouts["answer"] != 0]
    votes = rows.groupby(["group", "answer"]).size().groupby("group").max()
    most = votes.reindex(run.groups["group"]).fillna(0).to_numpy()
    share = float((most >= 0.75 * run.groups["rollouts"]).mean())
    if share < 0.5:
        return 0.0, ""
    return 0.8 * share, (
        f"The rollouts of {_percent(share)} of the prompts agree on an answer, and nearly none was"
        " accepted."
    )


def second_reading(samples: "DataFrame") -> tuple[int, int]:
    """Return how many of some wrong answers our verifier accepts, and how many it could read."""
    from ..grading import grade

    some = samples.head(_SECOND_READING)
    if not len(some):
        return 0, 0
    verdicts = grade(
        "math",
        some["completion"].tolist(),
        some["gold"].astype(str).tolist(),
        unboxed=True,
        budget=30.0,
    )
    read = [verdict.is_correct for verdict in verdicts if verdict.is_correct is not None]
    return sum(read), len(read)


def _another_reward(run: Evidence) -> Iterator[Cause]:
    if not run.has_rollouts or not run.has_verdicts or run.outcomes is None:
        return
    others = [name for name in run.outcomes.functions if name not in run.outcomes.decides]
    groups = run.outcomes.groups
    moved = groups[groups["spread"] > 0]
    if not others or len(moved) < LEAST_GROUPS:
        return
    share = float((moved["kind"] != PromptKind.MIXED).mean())
    by = run.outcomes.rollouts.groupby("group")
    ranges = by[[REWARD + name for name in others]].agg(np.ptp)
    driver = (ranges > 0).loc[moved["group"]].mean().idxmax().removeprefix(REWARD)
    if share >= 0.5:
        yield Cause(
            "another_reward",
            "Another reward drives the gradient",
            f"In {_percent(share)} of the prompts with a gradient all rollouts are equally right or"
            f" wrong, and {driver} differs.",
            f"give {driver} a smaller weight (reward_weights), or pay it for right answers alone"
            " (gate_on_correctness of this package).",
            share * len(moved) / len(groups),
        )


def _small_groups(run: Evidence) -> Iterator[Cause]:
    if not run.has_verdicts:
        return
    size, rate = int(run.groups["scored"].median()), run.pass_rate
    mixed, expected = run.share(PromptKind.MIXED), 1 - rate**size - (1 - rate) ** size
    # fewer than chance would make: some prompts are solved and others too hard, at any size
    if not 0.005 < rate < 0.3 or size < 2 or mixed >= 0.5 or mixed < 0.6 * expected:
        return
    needed = next((g for g in (4, 8, 16, 32) if g > size and 1 - (1 - rate) ** g > 0.8), 64)
    yield Cause(
        "small_groups",
        "Groups too small for the pass rate",
        f"{_percent(rate)} of the answers are right, so of {size} rollouts often none is:"
        f" {_percent(mixed)} of the prompts are mixed, and {needed} rollouts each would mix"
        f" {_percent(1 - rate**needed - (1 - rate) ** needed)} if all prompts were alike.",
        f"set num_generations={needed}, on fewer prompts; or train on easier problems.",
        0.5 * run.share(PromptKind.ALL_WRONG),
    )


def _lost_again(run: Evidence) -> Iterator[Cause]:
    rate, points = run.logged("learning_rate"), run.values("reward")
    if rate is None or len(points) < 16:
        return
    peak, last = _peak_and_last(points)
    noise = points.std() / np.sqrt(len(points) // 8)
    norm, kl = run.logged("grad_norm"), run.logged("kl")
    is_wild = (norm is not None and norm[1] > 5 * norm[0] > 0) or (kl is not None and kl[1] > 1)
    if peak - last > max(noise, 0.1, (0.2 if is_wild else 0.5) * abs(peak)):
        signs = [f"The mean reward fell {_change((peak, last))}"]
        for metric, name in {
            "entropy": "entropy",
            "grad_norm": "gradient norm",
            "kl": "KL",
        }.items():
            if logged := run.logged(metric):
                signs.append(f"the {name} went {_change(logged)}")
        yield Cause(
            "learning_rate_high",
            "It lost what it could: the learning rate is too high, or nothing holds the model back",
            ", ".join(signs) + ".",
            f"lower learning_rate ({rate[0]:.2g}) to a third, or set beta=0.01.",
            1.0,
        )


def _hardly_moves(run: Evidence) -> Iterator[Cause]:
    rate, entropy, points = run.logged("learning_rate"), run.logged("entropy"), run.values("reward")
    if not rate or not entropy or len(points) < 30 or not run.with_gradient >= 0.2:
        return
    kl = run.logged("kl")
    moved = abs(entropy[1] - entropy[0]) > 0.01 * abs(entropy[0]) or (kl and kl[1] > 1e-3)
    if not moved and _is_flat(points):
        yield Cause(
            "learning_rate_low",
            "The model hardly moves",
            f"{_percent(run.with_gradient)} of the rollouts have a gradient, and in"
            f" {len(points)} logs the entropy went from {entropy[0]:.4g} to {entropy[1]:.4g}, the"
            f" reward from {points[: len(points) // 4].mean():.3g} to {points[-1]:.3g}.",
            f"raise learning_rate ({rate[0]:.2g}) three times, or lower beta.",
            0.7,
        )


def _peak_and_last(points: np.ndarray) -> tuple[float, float]:
    """Return the best mean of an eighth of the logs, and the last one."""
    means = [part.mean() for part in np.array_split(points, min(8, len(points)))]
    return float(max(means)), float(means[-1])


def _is_flat(points: np.ndarray) -> bool:
    size = len(points) // 4
    first, last = points[:size], points[-size:]
    error = np.hypot(first.std(), last.std()) / np.sqrt(size)
    return bool(abs(last.mean() - first.mean()) <= 2 * error)


def _entropy_gone(run: Evidence) -> Iterator[Cause]:
    entropy = run.logged("entropy")
    if entropy and entropy[1] < min(0.05, 0.25 * entropy[0]) and not run.pass_rate > 0.8:
        yield Cause(
            "entropy",
            "The policy explores no more",
            f"The entropy fell {_change(entropy)} nats per token.",
            "start again from an earlier checkpoint with epsilon_high=0.28, a higher temperature or"
            " a lower learning_rate.",
            0.6,
        )


def _same_texts(run: Evidence) -> Iterator[Cause]:
    if not run.has_rollouts or run.pass_rate > 0.8 or run.groups["rollouts"].median() < 2:
        return
    texts = run.rollouts.groupby("group")["text"].nunique()
    if (share := float((texts[run.groups["group"]] == 1).mean())) >= 0.5:
        yield Cause(
            "same_texts",
            "The rollouts of a prompt are the same",
            f"All rollouts of {_percent(share)} of the prompts are one text.",
            "sample at a higher temperature, or start from an earlier checkpoint.",
            share,
        )


def _hacked(run: Evidence) -> Iterator[Cause]:
    if not run.has_rollouts or run.outcomes is None:
        return
    rollouts = run.outcomes.rollouts
    reward = run.quarters(rollouts, rollouts["reward"])
    is_single = run.outcomes.decides == run.outcomes.functions
    if is_single or not _rose(*reward, least=0.0):
        return
    grown = _grown(run)
    if grown:
        how, factor = max(grown.items(), key=lambda item: item[1])
        right = (
            f" Right answers: {run.right[0].mean:.0%}, then {run.right[1].mean:.0%}."
            if run.right
            else ""
        )
        yield Cause(
            "hacked",
            "The reward rises without better answers",
            f"From the first quarter to the last the mean reward rose from {reward[0].mean:.3g} to"
            f" {reward[1].mean:.3g}, and answers became {factor:.1f} times {how}.{right}",
            "look at the newest rollouts with trl-miner inspect; pay for length or form only with a"
            " right answer.",
            0.8,
        )


def _grown(run: Evidence) -> dict[str, float]:
    """Return how many times longer or more repetitive answers became, where it is 1.5 or more."""
    assert run.outcomes is not None
    rollouts, grown = run.outcomes.rollouts, {}
    for how, name, least in (("longer", "characters", 0), ("more repetitive", "repetition", 4)):
        first, last = run.quarters(rollouts, rollouts[name])
        if last.mean >= 1.5 * first.mean and last.mean > least:
            grown[how] = last.mean / first.mean
    return grown


RULES: Sequence[Callable[[Evidence], Iterator[Cause]]] = (
    *(_no_right_answer, _all_right_already, _equal_rewards, _cut, _rejected, _another_reward),
    *(_small_groups, _lost_again, _hardly_moves, _entropy_gone, _same_texts, _hacked),
)
