"""Why a run does not learn: causes that its own numbers show, the gravest first.

Each rule is a record at the end: what the cause is called, what it looks at, and what to do next. A
rule sees the rollouts of a run, its log, or both, and says nothing where they do not carry it. It
compares the first quarter of the steps with the last one. A run whose answers got better has no
causes. The thresholds are our choice, tested on runs that were made for each rule.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

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


class Finding(NamedTuple):
    """What a rule found: the weight of its cause, the evidence, and what its next step names."""

    weight: float
    evidence: str
    names: Mapping[str, Any] = {}


class Quarter(NamedTuple):
    """Mean of a number over a quarter of the steps, and its standard error."""

    mean: float
    error: float


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
    def kept(self) -> Outcomes:
        """The outcomes, for rules that need some."""
        assert self.outcomes is not None
        return self.outcomes

    @cached_property
    def has(self) -> set[str]:
        """What enough prompts have: "rollouts", "verdicts"."""
        if self.outcomes is None or len(self.groups) < LEAST_GROUPS:
            return set()
        counts = {"rollouts": len(self.kept.rollouts), "verdicts": self.groups["scored"].sum()}
        return {name for name, count in counts.items() if count}

    @cached_property
    def groups(self) -> "DataFrame":
        """The groups of the last half of the steps."""
        return self._last_half(self.kept.groups)

    @cached_property
    def rollouts(self) -> "DataFrame":
        """The rollouts of the last half of the steps."""
        return self._last_half(self.kept.rollouts)

    def _last_half(self, table: "DataFrame") -> "DataFrame":
        return table[table["step"] >= self.kept.groups["step"].median()]

    def share(self, kind: PromptKind) -> float:
        """Return the share of the prompts of the last half that are of a kind."""
        return float((self.groups["kind"] == kind).mean())

    @cached_property
    def pass_rate(self) -> float:
        """The share of right rollouts of the last half; NaN: not known."""
        if "verdicts" not in self.has:
            return np.nan
        return float(self.groups["correct"].sum() / self.groups["scored"].sum())

    @cached_property
    def right(self) -> tuple[Quarter, Quarter] | None:
        """The share of right rollouts in the first and the last quarter; None: not known."""
        if "verdicts" not in self.has:
            return None
        groups = self.kept.groups
        return quarters(groups, groups["correct"] / groups["scored"].replace(0, np.nan))

    @cached_property
    def learned(self) -> bool:
        """Whether the share of right rollouts rose, by more than chance."""
        return self.right is not None and _rose(*self.right, least=_HELD)


def quarters(table: "DataFrame", values: "Series") -> tuple[Quarter, Quarter]:
    """Return the first and the last quarter of the steps of a number of each row."""
    low, high = table["step"].quantile([0.25, 0.75])
    parts = (values[chosen].dropna() for chosen in (table["step"] <= low, table["step"] >= high))
    first, last = (Quarter(part.mean(), part.sem() if len(part) > 1 else np.inf) for part in parts)
    return first, last


def _rose(first: Quarter, last: Quarter, least: float) -> bool:
    rise = last.mean - first.mean
    return bool(rise >= least and rise > 3 * np.hypot(first.error, last.error))


def find_causes(evidence: Evidence) -> list[Cause]:
    """Return why a run does not learn, the gravest cause first; empty: it learns, or its numbers
    show no cause."""
    if evidence.learned:
        return []
    causes = [
        Cause(rule.key, rule.title, finding.evidence, rule.next_step.format(**finding.names), finding.weight)
        for rule in RULES
        if rule.needs <= evidence.has and (finding := rule.look(evidence))
    ]  # fmt: skip
    return sorted(causes, key=lambda cause: -cause.weight)


def _change(means: tuple[float, float]) -> str:
    return f"from {means[0]:.3g} to {means[1]:.3g}"


def _percent(share: float) -> str:
    return f"{share:.0%}" if share > 0.005 or share == 0 else f"{share:.2%}"


# The rules


def _no_right_answer(run: Evidence) -> Finding | None:
    share = run.share(PromptKind.ALL_WRONG)
    # a run that had right answers and lost them has another cause
    had_some = run.right is None or run.right[0].mean >= 0.05
    if share < 0.95 or run.pass_rate >= 0.01 or had_some:
        return None
    right, scored = int(run.groups["correct"].sum()), int(run.groups["scored"].sum())
    return Finding(
        0.9 * share,  # cuts and rejected answers, which explain it, come first
        f"{right:,} of the last {scored:,} rollouts are right: {_percent(share)} of the prompts are"
        " all wrong, and equal rewards give no gradient.",
    )


def _all_right_already(run: Evidence) -> Finding | None:
    share = run.share(PromptKind.ALL_RIGHT)
    return Finding(
        share,
        f"In the last half {_percent(share)} of the prompts were answered right by all rollouts,"
        " which gives GRPO no gradient.",
    ) if share >= 0.8 else None  # fmt: skip


def _equal_rewards(run: Evidence) -> Finding | None:
    """Where no rollouts were kept, the log says how many groups had equal rewards."""
    zero, reward = run.logged("frac_reward_zero_std"), run.logged("reward")
    if not zero or not reward or zero[1] < 0.8 or "verdicts" in run.has:
        return None
    return Finding(
        zero[1],
        f"So it was for {_percent(zero[1])} of the prompts in the last quarter, and their mean"
        f" reward was {reward[1]:.3g}: there is no gradient.",
    )


def _cut(run: Evidence) -> Finding | None:
    cut, limit = run.logged("completions/clipped_ratio"), run.logged("completions/max_length")
    share = cut[1] if cut else np.nan
    evidence = f"{_percent(share)} of the rollouts of the last quarter reached the limit"
    evidence += f" of {limit[1]:.0f} tokens." if limit else "."
    if "rollouts" in run.has and run.rollouts["truncated"].notna().any():
        share, evidence = _by_cut(run.rollouts)
    at_first = run.logs["completions/clipped_ratio"][0, 1] if cut else share
    if at_first < 0.1:
        evidence += f" At first it was {_percent(at_first)}, so something else made them longer."
    if not share >= 0.25 or run.pass_rate > 0.8:
        return None
    return Finding(float(share) * (0.95 if at_first >= 0.1 else 0.5), evidence)


def _by_cut(rollouts: "DataFrame") -> tuple[float, str]:
    """Return the share of rollouts that are cut, 0 where these are right as often as others."""
    share = float(rollouts["truncated"].mean())
    by = rollouts["correct"].groupby(rollouts["truncated"] > 0).mean().dropna()
    evidence = f"{_percent(share)} of the rollouts of the last half were cut off."
    if len(by) < 2:
        return share, evidence
    right = f" {_percent(by[True])} of these are right, of the others {_percent(by[False])}."
    return share if by[True] < by[False] else 0.0, evidence + right


def _rejected(run: Evidence) -> Finding | None:
    rollouts = run.kept.rollouts
    wrong = rollouts[rollouts["correct"] == 0]
    finding = max(_accepted_elsewhere(rollouts, wrong), _accepted_by_us(run.kept.samples))
    if not finding.weight and run.pass_rate < 0.05 and run.share(PromptKind.ALL_WRONG) > 0.8:
        finding = _agreed(run)
    weight = finding.weight * len(wrong) / len(rollouts)
    return Finding(weight, finding.evidence) if weight else None


def _accepted_elsewhere(rollouts: "DataFrame", wrong: "DataFrame") -> Finding:
    accepted = rollouts.query("correct == 1 and answer != 0")
    same = wrong.merge(accepted[["prompt", "answer"]].drop_duplicates())
    if len(same) < 10 or len(same) < 0.2 * len(wrong):
        return Finding(0.0, "")
    return Finding(
        len(same) / len(wrong),
        f"{_percent(len(same) / len(wrong))} of the {len(wrong):,} wrong rollouts end with an answer"
        " that was accepted in another rollout of the same prompt.",
    )


def _accepted_by_us(samples: "DataFrame") -> Finding:
    """Let our verifier read some wrong answers again."""
    from ..grading import grade

    some = samples.head(_SECOND_READING)
    texts, golds = ([*map(str, some.get(name, ()))] for name in ("completion", "gold"))
    verdicts = grade("math", texts, golds, unboxed=True, budget=30.0) if texts else []
    read = [verdict.is_correct for verdict in verdicts if verdict.is_correct is not None]
    count = sum(read)
    if count < 5 or count < 0.2 * len(read):
        return Finding(0.0, "")
    return Finding(
        count / len(read),
        f"trl-miner's verifier accepts {count} of {len(read)} sampled wrong answers.",
    )


def _agreed(run: Evidence) -> Finding:
    """Return evidence where no answer is accepted: the rollouts of a prompt agree on one."""
    rows = run.rollouts[run.rollouts["answer"] != 0]
    votes = rows.groupby(["group", "answer"]).size().groupby("group").max()
    most = votes.reindex(run.groups["group"]).fillna(0).to_numpy()
    share = float((most >= 0.75 * run.groups["rollouts"]).mean())
    return Finding(
        0.8 * share * (share >= 0.5),
        f"The rollouts of {_percent(share)} of the prompts agree on an answer, and nearly none was"
        " accepted.",
    )


def _another_reward(run: Evidence) -> Finding | None:
    others = [REWARD + name for name in run.kept.functions if name not in run.kept.decides]
    groups = run.kept.groups
    moved = groups[groups["spread"] > 0]
    share = float((moved["kind"] != PromptKind.MIXED).mean())
    if not others or len(moved) < LEAST_GROUPS or share < 0.5:
        return None
    by = run.kept.rollouts.groupby("group")[others]
    driver = (by.max() > by.min()).loc[moved["group"]].mean().idxmax().removeprefix(REWARD)
    return Finding(
        share * len(moved) / len(groups),
        f"In {_percent(share)} of the prompts with a gradient all rollouts are equally right or"
        f" wrong, and {driver} differs.",
        {"driver": driver},
    )


def _small_groups(run: Evidence) -> Finding | None:
    size, rate = int(run.groups["scored"].median()), run.pass_rate
    mixed, expected = run.share(PromptKind.MIXED), _mixed_by_chance(rate, size)
    # fewer than chance would make: some prompts are solved and others too hard, at any size
    if not 0.005 < rate < 0.3 or size < 2 or mixed >= 0.5 or mixed < 0.6 * expected:
        return None
    sizes = (4, 8, 16, 32)
    needed = next((g for g in sizes if g > size and 1 - (1 - rate) ** g > 0.8), 64)
    return Finding(
        0.5 * run.share(PromptKind.ALL_WRONG),
        f"{_percent(rate)} of the answers are right, so of {size} rollouts often none is:"
        f" {_percent(mixed)} of the prompts are mixed, and {needed} rollouts each would mix"
        f" {_percent(_mixed_by_chance(rate, needed))} if all prompts were alike.",
        {"needed": needed},
    )


def _mixed_by_chance(rate: float, size: int) -> float:
    return float(1 - rate**size - (1 - rate) ** size)


def _lost_again(run: Evidence) -> Finding | None:
    rate, points = run.logged("learning_rate"), run.values("reward")
    if rate is None or len(points) < 16:
        return None
    means = [part.mean() for part in np.array_split(points, 8)]
    peak, last = max(means), means[-1]
    noise = points.std() / np.sqrt(len(points) // 8)
    norm, kl = run.logged("grad_norm"), run.logged("kl")
    is_wild = (norm is not None and norm[1] > 5 * norm[0] > 0) or (kl is not None and kl[1] > 1)
    if peak - last <= max(noise, 0.1, (0.2 if is_wild else 0.5) * abs(peak)):
        return None
    signs = [f"The mean reward fell {_change((peak, last))}"]
    for metric, name in {"entropy": "entropy", "grad_norm": "gradient norm", "kl": "KL"}.items():
        if logged := run.logged(metric):
            signs.append(f"the {name} went {_change(logged)}")
    return Finding(1.0, ", ".join(signs) + ".", {"rate": rate[0]})


def _hardly_moves(run: Evidence) -> Finding | None:
    rate, entropy, points = run.logged("learning_rate"), run.logged("entropy"), run.values("reward")
    used, zero = run.logged("rollouts/grpo"), run.logged("frac_reward_zero_std")
    with_gradient = min(used) if used else 1 - max(zero) if zero else np.nan
    if not rate or not entropy or len(points) < 30 or not with_gradient >= 0.2:
        return None
    kl, size = run.logged("kl"), len(points) // 4
    first, last = points[:size], points[-size:]
    error = np.hypot(first.std(), last.std()) / np.sqrt(size)
    is_flat = abs(last.mean() - first.mean()) <= 2 * error
    has_moved = abs(entropy[1] - entropy[0]) > 0.01 * abs(entropy[0]) or (kl and kl[1] > 1e-3)
    return Finding(
        0.7,
        f"{_percent(with_gradient)} of the rollouts have a gradient, and in {len(points)} logs the"
        f" entropy went from {entropy[0]:.4g} to {entropy[1]:.4g}, the reward from"
        f" {first.mean():.3g} to {points[-1]:.3g}.",
        {"rate": rate[0]},
    ) if is_flat and not has_moved else None  # fmt: skip


def _entropy_gone(run: Evidence) -> Finding | None:
    entropy = run.logged("entropy")
    if not entropy or entropy[1] >= min(0.05, 0.25 * entropy[0]) or run.pass_rate > 0.8:
        return None
    return Finding(0.6, f"The entropy fell {_change(entropy)} nats per token.")


def _same_texts(run: Evidence) -> Finding | None:
    texts = run.rollouts.groupby("group")["text"].nunique()
    share = float((texts[run.groups["group"]] == 1).mean())
    if share < 0.5 or run.pass_rate > 0.8 or run.groups["rollouts"].median() < 2:
        return None
    return Finding(share, f"All rollouts of {_percent(share)} of the prompts are one text.")


def _hacked(run: Evidence) -> Finding | None:
    rollouts, grown = run.kept.rollouts, {}
    first, last = quarters(rollouts, rollouts["reward"])
    for how, name, least in (("longer", "characters", 0), ("more repetitive", "repetition", 4)):
        before, after = (quarter.mean for quarter in quarters(rollouts, rollouts[name]))
        if after >= 1.5 * before and after > least:
            grown[after / before] = how
    is_single = run.kept.decides == run.kept.functions
    if is_single or not grown or not _rose(first, last, least=0.0):
        return None
    right = (
        "{:.0%}, then {:.0%}".format(*(quarter.mean for quarter in run.right)) if run.right else ""
    )
    return Finding(
        0.8,
        f"From the first quarter to the last the mean reward rose from {first.mean:.3g} to"
        f" {last.mean:.3g}, and answers became {max(grown):.1f} times {grown[max(grown)]}."
        + (f" Right answers: {right}." if right else ""),
    )


@dataclass(frozen=True)
class Rule:
    """A cause and how it is found.

    Attributes:
        key, title: Those of the cause.
        look: Returns what shows it; None: nothing does.
        next_step: What to do; names in braces are those of the finding.
        needs: What it looks at besides the log, see `Evidence.has`.
    """

    key: str
    title: str
    look: Callable[[Evidence], Finding | None]
    next_step: str
    needs: frozenset[str] = frozenset()


_VERDICTS, _ROLLOUTS = frozenset({"verdicts"}), frozenset({"rollouts"})
# fmt: off
RULES: Sequence[Rule] = (
    Rule("no_right_answer", "No right answer", _no_right_answer,
         "train on easier problems, or fine-tune on solutions first; and see with trl-miner verify whether right"
         " answers are accepted at all.", _VERDICTS),
    Rule("all_right", "All right already", _all_right_already,
         "train on harder problems; all_right: miner of this package lets such prompts train.", _VERDICTS),
    Rule("equal_rewards", "The rollouts of a prompt have equal rewards", _equal_rewards,
         "see whether they are all wrong or all right: log_completions=True keeps the rollouts."),
    Rule("cut", "Answers are cut off", _cut, "raise max_completion_length, or ask for shorter answers."),
    Rule("rejected", "Right, but not accepted", _rejected,
         "look at these answers: trl-miner verify FILE lists disagreements first. Correct the reward function, or say"
         " in the prompt how to write the answer.", _VERDICTS | _ROLLOUTS),
    Rule("another_reward", "Another reward drives the gradient", _another_reward,
         "give {driver} a smaller weight (reward_weights), or pay it for right answers alone (gate_on_correctness of"
         " this package).", _VERDICTS | _ROLLOUTS),
    Rule("small_groups", "Groups too small for the pass rate", _small_groups,
         "set num_generations={needed}, on fewer prompts; or train on easier problems.", _VERDICTS),
    Rule("learning_rate_high", "It lost what it could: the learning rate is too high, or nothing holds the model back",
         _lost_again, "lower learning_rate ({rate:.2g}) to a third, or set beta=0.01."),
    Rule("learning_rate_low", "The model hardly moves", _hardly_moves,
         "raise learning_rate ({rate:.2g}) three times, or lower beta."),
    Rule("entropy", "The policy explores no more", _entropy_gone,
         "start again from an earlier checkpoint with epsilon_high=0.28, a higher temperature or a lower"
         " learning_rate."),
    Rule("same_texts", "The rollouts of a prompt are the same", _same_texts,
         "sample at a higher temperature, or start from an earlier checkpoint.", _ROLLOUTS),
    Rule("hacked", "The reward rises without better answers", _hacked,
         "look at the newest rollouts with trl-miner inspect; pay for length or form only with a right answer.",
         _ROLLOUTS),
)
