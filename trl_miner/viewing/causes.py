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
from .rollouts import REWARD

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

    def logged(self, metric: str) -> tuple[float, float] | None:
        """Return the means of a metric over the first and the last quarter of its logs, at least
        four; None: it has no such."""
        values = self.logs.get(metric, np.empty((0, 2)))[:, 1]
        values = values[np.isfinite(values)]
        size = len(values) // 4
        return (values[:size].mean(), values[-size:].mean()) if size else None

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
    if run.has_verdicts or zero is None or reward is None or zero[1] < 0.8:
        return
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
        by = run.rollouts.groupby(run.rollouts["truncated"] > 0)["correct"].mean()
        share = float(run.rollouts["truncated"].mean())
        evidence = f"{_percent(share)} of the rollouts of the last half were cut off."
        if by.get(True, np.nan) > by.get(False, np.nan):
            return  # being cut does not make them wrong
        if by.notna().all() and len(by) == 2:
            evidence += (
                f" {_percent(by[True])} of these are right, of the others {_percent(by[False])}."
            )
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


def _rejected(run: Evidence) -> Iterator[Cause]:
    if not run.has_rollouts or not run.has_verdicts or run.outcomes is None:
        return
    wrong = run.outcomes.rollouts[run.outcomes.rollouts["correct"] == 0]
    evidence, share = "", 0.0
    accepted = run.outcomes.rollouts.query("correct == 1 and answer != 0")
    same = wrong.merge(accepted[["prompt", "answer"]].drop_duplicates())
    if len(same) >= 10 and len(same) >= 0.2 * len(wrong):
        share = len(same) / len(wrong)
        evidence = (
            f"{_percent(share)} of the {len(wrong):,} wrong rollouts end with an answer that was"
            " accepted in another rollout of the same prompt."
        )
    count, read = second_reading(run.outcomes.samples)
    if count >= 5 and count >= 0.2 * read and count / read > share:
        share = count / read
        evidence = f"trl-miner's verifier accepts {count} of {read} sampled wrong answers."
    if not share and run.pass_rate < 0.05 and run.share(PromptKind.ALL_WRONG) > 0.8:
        rows = run.rollouts[run.rollouts["answer"] != 0]
        votes = rows.groupby(["group", "answer"]).size().groupby("group").max()
        agreed = (
            votes.reindex(run.groups["group"]).fillna(0).to_numpy() / run.groups["rollouts"]
        ) >= 0.75
        if (part := float(agreed.mean())) >= 0.5:
            share = 0.8 * part
            evidence = (
                f"The rollouts of {_percent(part)} of the prompts agree on an answer, and nearly"
                " none was accepted."
            )
    if share:
        yield Cause(
            "rejected",
            "Right, but not accepted",
            evidence,
            "look at these answers: trl-miner verify FILE lists disagreements first. Correct the"
            " reward function, or say in the prompt how to write the answer.",
            share * float(len(wrong) / len(run.outcomes.rollouts)),
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


def _learning_rate(run: Evidence) -> Iterator[Cause]:
    entropy, kl, norm = (run.logged(name) for name in ("entropy", "kl", "grad_norm"))
    rate = run.logged("learning_rate")
    with_gradient = run.logged("rollouts/grpo")
    if with_gradient is None and (zero := run.logged("frac_reward_zero_std")):
        with_gradient = (1 - zero[0], 1 - zero[1])
    if rate is None or with_gradient is None or "reward" not in run.logs:
        return
    points = run.logs["reward"][:, 1]
    points = points[np.isfinite(points)]
    peak, last = _peak_and_last(points)
    noise = points.std() / np.sqrt(max(1, len(points) // 8))
    grew = norm is not None and norm[1] > 5 * norm[0] > 0
    far = kl is not None and kl[1] > 1
    if len(points) >= 16 and peak - last > max(
        noise, 0.1, (0.2 if grew or far else 0.5) * abs(peak)
    ):
        signs = [f"The mean reward fell from {peak:.3g} to {last:.3g}"]
        for name, logged in (("entropy", entropy), ("gradient norm", norm), ("KL", kl)):
            signs += [f"the {name} went from {logged[0]:.2g} to {logged[1]:.2g}"] if logged else []
        yield Cause(
            "learning_rate_high",
            "It lost what it could: the learning rate is too high, or nothing holds the model back",
            ", ".join(signs) + ".",
            f"lower learning_rate ({rate[0]:.2g}) to a third, or set beta=0.01.",
            1.0,
        )
    moved = abs(entropy[1] - entropy[0]) > 0.01 * abs(entropy[0]) if entropy else True
    if (
        min(with_gradient) >= 0.2
        and len(points) >= 30
        and not moved
        and not (kl and kl[1] > 1e-3)
        and _is_flat(points)
    ):
        yield Cause(
            "learning_rate_low",
            "The model hardly moves",
            f"{_percent(with_gradient[1])} of the rollouts have a gradient, and in {len(points)} logs"
            f" the entropy went from {entropy[0]:.4g} to {entropy[1]:.4g}, the reward from"  # type: ignore[index]
            f" {points[: len(points) // 4].mean():.3g} to {last:.3g}.",
            f"raise learning_rate ({rate[0]:.2g}) three times, or lower beta.",
            0.7,
        )


def _peak_and_last(points: np.ndarray) -> tuple[float, float]:
    """Return the best mean of an eighth of the logs, and the last one."""
    means = [part.mean() for part in np.array_split(points, min(8, len(points)))]
    return float(max(means)), float(means[-1])


def _is_flat(points: np.ndarray) -> bool:
    first, last = points[: len(points) // 4], points[-(len(points) // 4) :]
    error = np.hypot(first.std(), last.std()) / np.sqrt(len(first))
    return bool(abs(last.mean() - first.mean()) <= 2 * error)


def _entropy_gone(run: Evidence) -> Iterator[Cause]:
    if run.pass_rate > 0.8:
        return
    entropy = run.logged("entropy")
    if entropy and entropy[1] < 0.05 and entropy[1] < 0.25 * entropy[0]:
        yield Cause(
            "entropy",
            "The policy explores no more",
            f"The entropy fell from {entropy[0]:.3g} to {entropy[1]:.3g} nats per token.",
            "start again from an earlier checkpoint with epsilon_high=0.28, a higher temperature or"
            " a lower learning_rate.",
            0.6,
        )
    elif run.has_rollouts:
        kinds = run.rollouts.groupby("group")["text"].nunique()
        same = float((kinds[run.groups["group"]] == 1).mean())
        if same >= 0.5 and run.groups["rollouts"].median() > 1:
            yield Cause(
                "entropy",
                "The policy explores no more",
                f"All rollouts of {_percent(same)} of the prompts are the same text.",
                "sample at a higher temperature, or start from an earlier checkpoint.",
                same,
            )


def _hacked(run: Evidence) -> Iterator[Cause]:
    if not run.has_rollouts or run.outcomes is None:
        return
    rollouts = run.outcomes.rollouts
    reward = run.quarters(rollouts, rollouts["reward"])
    is_single = run.outcomes.decides == run.outcomes.functions
    if is_single or not _rose(*reward, least=0.0):
        return
    ways = {"longer": "characters", "more repetitive": "repetition"}
    changes = {how: run.quarters(rollouts, rollouts[name]) for how, name in ways.items()}
    grown = {
        how: last.mean / first.mean
        for how, (first, last) in changes.items()
        if last.mean >= 1.5 * first.mean and (how == "longer" or last.mean > 4)
    }
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


RULES: Sequence[Callable[[Evidence], Iterator[Cause]]] = (
    *(_no_right_answer, _all_right_already, _equal_rewards, _cut, _rejected, _another_reward),
    *(_small_groups, _learning_rate, _entropy_gone, _hacked),
)
