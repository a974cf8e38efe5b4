"""How the prompts of any run came out: rollouts and groups as numbers, from files read one by one.

Texts do not stay: of each rollout its final answer and its repetition are kept as numbers, of each
prompt a short text, and some rollouts as samples. A million rollouts are some 150 MB.
"""

import re
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..grading.math_answers import boxes
from ..prompt_kinds import PromptKind
from ..runs.history import RunHistory
from ..runs.prompt_ledger import Ledger, read_ledger
from ..trainer.prompt_keys import prompt_text
from ..trainer.reward_functions import KNOWN_VERIFIERS
from .rollout_lines import REWARD
from .rollouts import find_rollouts

if TYPE_CHECKING:
    from pandas import DataFrame, Series

THRESHOLD = 1.0  # a reward of it or more is right, as `correct_threshold` says by default
_SAMPLES = 240  # wrong rollouts with a gold, of which the verifier reads some again
_SAMPLES_OF_FRAME = 16
_NEWEST = 8  # rollouts
_NUMBERS = "advantage correct characters tokens truncated repetition text answer".split()
_LONGEST_END = 4000  # characters of a completion in which repetition is looked for
_MOST_LEVELS = 12  # values of a reward that says right or wrong
_VERIFIES = re.compile(r"correct|accura|answer|solution|verif|math|exact|solve|(^|_)acc($|_)", re.I)
_IS_FORM = re.compile(r"f(or)?ma?t|length|overlong|penalt|tag|think|repetit|cosine", re.I)
_LAST_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_KINDS = {
    PromptKind.ALL_RIGHT: "groups/ph",
    PromptKind.MIXED: "groups/he",
    PromptKind.ALL_WRONG: "groups/nh",
    PromptKind.UNSCORABLE: "groups/unscorable",
}


@dataclass(frozen=True)
class Outcomes:
    """The rollouts of a run as numbers.

    Attributes:
        rollouts: A row each: "step", "group", "prompt" (a number), "reward", "reward:NAME",
            "advantage", "correct" (1, 0; NaN: not scored), "characters", "tokens" (NaN: not
            recorded), "truncated", "repetition" (how many times smaller it is when packed),
            "text" and "answer" (numbers: the same for the same
            completion, or for the same final answer; an answer of 0: none).
        groups: A row for each prompt of a generation batch, by step: "step", "group", "prompt",
            "rollouts", "correct", "scored", "spread" of the rewards, "kind".
        texts: The short text of each prompt.
        samples: Wrong rollouts with a gold: "step", "prompt", "completion", "gold".
        decides: The reward functions that say what is right; empty: none does, as rewards have too
            many values.
        is_guess: Whether that follows from their names alone.
        threshold: The reward from which on a rollout is right.
        newest: The last rollouts, with their texts.
    """

    rollouts: "DataFrame"
    groups: "DataFrame"
    texts: Mapping[int, str]
    samples: "DataFrame"
    decides: Sequence[str]
    is_guess: bool
    threshold: float = THRESHOLD
    notes: Sequence[str] = field(default=())
    newest: "DataFrame | None" = None

    @property
    def functions(self) -> list[str]:
        """The names of the reward functions."""
        return [name.removeprefix(REWARD) for name in self.rollouts if name.startswith(REWARD)]

    @property
    def verifiers(self) -> list[str]:
        """The columns of rewards that say what is right, else the total reward."""
        return [REWARD + name for name in self.decides] or ["reward"]

    def at_steps(self, steps: Collection[int] | None) -> "DataFrame":
        """Return the groups of some steps; None: all. Raise ValueError for a step that has none."""
        check_steps(steps, self.groups["step"])
        return self.groups[self.groups["step"].isin([*steps])] if steps else self.groups

    def columns(self) -> dict[str, np.ndarray]:
        """Return metrics by step, as the log of a run of this package has them: (n, 2) each."""
        groups, rollouts = self.groups, self.rollouts
        metrics: dict[str, Any] = {}
        if len(rollouts):
            metrics["reward"] = rollouts.groupby("step")["reward"].mean()
        if self.decides:
            for kind, name in _KINDS.items():
                metrics[name] = (groups["kind"] == kind).groupby(groups["step"]).mean()
            is_right = groups["kind"] == PromptKind.ALL_RIGHT
            metrics["rollouts/recovered"] = _share(groups, is_right & (groups["spread"] == 0))
        metrics["rollouts/grpo"] = _share(groups, groups["spread"] > 0)
        for name in self.functions:
            metrics[f"rewards/{name}/mean"] = rollouts.groupby("step")[REWARD + name].mean()
        return {name: _points(values) for name, values in metrics.items() if values.count()}


def check_steps(steps: Collection[int] | None, recorded: Iterable[int]) -> None:
    """Raise ValueError for a step that is not recorded."""
    known = sorted({*map(int, recorded)})
    if unknown := sorted({*(steps or ())} - {*known}):
        listed = ", ".join(map(str, known[:8])) + ", ..." * (len(known) > 8)
        raise ValueError(
            f"--steps must name recorded steps: got {unknown[0]}, and there are {listed}."
        )


def by_chance(sizes: np.ndarray, most: int) -> np.ndarray:
    """Return places of sizes whose sum is at most `most`, by chance, in order; one at least."""
    order = np.random.default_rng(0).permutation(len(sizes))
    fitting = int((np.cumsum(sizes[order]) <= most).sum())
    return np.sort(order[: max(1, fitting)])


def read_outcomes(
    run: RunHistory,
    correct: str | None = None,
    threshold: float | None = None,
    *,
    quiet: bool = True,
) -> Outcomes | None:
    """Return how the prompts of a run came out: from its rollouts, else from its ledger; None: it
    kept neither."""
    settings = run.settings
    # a record has every number in one spelling: "8.0"
    size = int(float(settings.get("num_generations", 0))) or None
    files = find_rollouts(run.folder, num_generations=size)
    if files is None:
        ledger = read_ledger(run.folder) if run.folder.is_dir() else None
        return of_ledger(ledger) if ledger and ledger.batches else None
    chosen = correct or settings.get("correct_reward_func", "None")
    if threshold is None:
        threshold = float(settings.get("correct_threshold", THRESHOLD))
    names = [] if chosen == "None" else [name.strip() for name in chosen.split("+")]
    return collect(files.frames(quiet=quiet), chosen=names, threshold=threshold, notes=files.notes)


def with_columns(run: RunHistory, outcomes: Outcomes | None) -> RunHistory:
    """Return a run with what its log lacks: kinds of prompts from its rollouts, and the share of
    rollouts with a gradient."""
    columns = dict(outcomes.columns()) if outcomes else {}
    zero = run.points("frac_reward_zero_std")
    if len(zero):
        columns.setdefault("rollouts/grpo", zero * [1, -1] + [0, 1])
    if "rollouts/grpo" in columns and not run.settings:  # plain GRPO trains on these alone
        columns["rollouts/used"] = columns["rollouts/grpo"]
    steps = max((int(points[-1, 0]) for points in columns.values()), default=0)
    return replace(run, columns={**columns, **run.columns}, steps=max(run.steps, steps))


def collect(
    frames: Iterable["DataFrame"],
    *,
    chosen: Sequence[str] = (),
    threshold: float = THRESHOLD,
    notes: Sequence[str] = (),
) -> Outcomes:
    """Put the frames of `RolloutFiles.frames` together.

    Args:
        frames: One by one; their texts are not kept.
        chosen: The reward functions that decide what is right. Empty: see `decides`.
        threshold: The reward from which on a rollout is right.
        notes: Sentences to pass on; a list that grows while the frames are read counts whole.
    """
    collector = OutcomeCollector(chosen, threshold)
    for frame in frames:
        collector.add(frame)
    return collector.outcomes(notes)


class OutcomeCollector:
    """Puts frames of rollouts together, as numbers; `chosen` and `threshold` are those of
    `collect`."""

    def __init__(self, chosen: Sequence[str] = (), threshold: float = THRESHOLD) -> None:
        import pandas as pd

        self._chosen, self._threshold = chosen, threshold
        self.parts: list[DataFrame] = []  # a frame of `Outcomes.rollouts` for each
        self._texts: dict[int, str] = {}
        self._samples = self._newest = pd.DataFrame()

    def add(self, frame: "DataFrame") -> None:
        """Add a frame of `RolloutFiles.frames`."""
        part = _numbers(frame)
        self.parts.append(part)
        _add_texts(self._texts, frame["prompt"], part["prompt"])
        self._newest = frame.groupby("group", sort=False).tail(2).tail(_NEWEST)
        self._samples = _with_some(self._samples, frame[frame["gold"].notna()])

    def outcomes(self, notes: Sequence[str] = ()) -> Outcomes:
        """Return what the frames hold together."""
        import pandas as pd

        rollouts, chosen = pd.concat(self.parts, ignore_index=True), self._chosen
        deciding, is_guess = _checked(chosen, rollouts), False
        if not chosen:
            deciding, is_guess = decides(rollouts, self._threshold)
        rollouts["correct"] = _correct(rollouts, deciding, self._threshold)
        samples = self._samples
        if len(samples):
            samples = samples[_correct(samples, deciding, self._threshold) == 0].head(_SAMPLES)
        return Outcomes(
            rollouts, group_rollouts(rollouts), self._texts, samples, deciding, is_guess,
            self._threshold, tuple(notes), self._newest,
        )  # fmt: skip


def of_ledger(ledger: Ledger) -> Outcomes:
    """Return the outcomes that a run's prompt ledger holds: groups, and no rollouts."""
    import pandas as pd

    rows = [
        (batch.step, prompt, batch.rollouts, correct, scored, spread or 0.0)
        for batch in ledger.batches
        for prompt, correct, scored, spread in zip(
            batch.prompts, batch.correct, batch.scored, batch.spread, strict=True
        )
    ]
    names = ["step", "prompt", "rollouts", "correct", "scored", "spread"]
    groups = with_kind(pd.DataFrame(rows, columns=names)).rename_axis("group").reset_index()
    rollouts = pd.DataFrame(columns=["step", "group", "prompt", "reward", *_NUMBERS])
    return Outcomes(
        rollouts, groups, dict(enumerate(ledger.texts)), pd.DataFrame(), ["the verifier"], False,
        notes=tuple(ledger.notes),
    )  # fmt: skip


def decides(rollouts: "DataFrame", threshold: float = THRESHOLD) -> tuple[list[str], bool]:
    """Return which reward functions say whether an answer is right, and whether that is a guess.

    They are the known verifiers, else those with a name such as correctness, else those that are
    not of the form and at times reach the threshold. None decides where a reward has many values
    and never reaches it, as that of a reward model.
    """
    names = [name.removeprefix(REWARD) for name in rollouts if name.startswith(REWARD)]
    known = [name for name in names if name in KNOWN_VERIFIERS]
    named = [name for name in names if _VERIFIES.search(name) and not _IS_FORM.search(name)]
    others = [name for name in names if not _IS_FORM.search(name)] or names
    reached = [name for name in others if (rollouts[REWARD + name] >= threshold).any()]
    found = known or named or reached or others
    values = rollouts[[REWARD + name for name in found]]
    if not (values >= threshold).any(axis=None) and (values.nunique() > _MOST_LEVELS).any():
        return [], False
    return found, len(names) > 1 and not known


def _correct(rollouts: "DataFrame", deciding: Sequence[str], threshold: float) -> "Series":
    """Return 1 where the smallest reward of those that decide reaches the threshold, else 0; NaN
    where none of them scored the rollout."""
    lowest = rollouts[[REWARD + name for name in deciding]].min(axis=1)
    return (lowest >= threshold - 1e-6).astype(float).where(lowest.notna())


def group_rollouts(rollouts: "DataFrame") -> "DataFrame":
    """Return the groups of `Outcomes.rollouts`, in the order of their steps."""
    by = rollouts.groupby("group", sort=False)
    groups = by.agg(
        step=("step", "first"), prompt=("prompt", "first"), rollouts=("step", "size"),
        correct=("correct", "sum"), scored=("correct", "count"),
        low=("reward", "min"), high=("reward", "max"),
    )  # fmt: skip
    # less is rounding: TRL's own test is torch.isclose
    spread = (groups["high"] - groups["low"]).where(lambda found: found > 1e-6, 0.0)
    found = with_kind(groups.drop(columns=["low", "high"]).assign(spread=spread.fillna(0.0)))
    return found.sort_values("step", kind="stable").reset_index()


def with_kind(groups: "DataFrame") -> "DataFrame":
    """Return groups with their kind: mixed where some rollouts are right and some wrong; unscorable
    where not all were judged, and the others are alike."""
    is_mixed = (groups["correct"] > 0) & (groups["correct"] < groups["scored"])
    is_whole = groups["scored"] == groups["rollouts"]
    kinds = [PromptKind.MIXED, PromptKind.ALL_RIGHT, PromptKind.ALL_WRONG]
    choices = [is_mixed, is_whole & (groups["correct"] > 0), is_whole]
    return groups.assign(kind=np.select(choices, kinds, PromptKind.UNSCORABLE))


def final_answer(text: str) -> str:
    """Return the end of a chain of thought as far as it can be compared: the last box, else what
    follows ####, else the last number; empty: none."""
    if found := boxes(text):
        return found[0]  # the last one comes first
    if "####" in text:
        return text.rpartition("####")[2].strip()
    numbers = _LAST_NUMBER.findall(text[-200:])
    return numbers[-1].replace(",", "") if numbers else ""


def _numbers(frame: "DataFrame") -> "DataFrame":
    """Return a frame of rollouts as numbers, see `Outcomes.rollouts`."""
    completions = frame["completion"].tolist()
    answers = np.array([final_answer(text) for text in completions], dtype=object)
    rewards = [name for name in frame if name.startswith(REWARD)]
    numbers = frame[["reward", "advantage", *rewards]].assign(
        characters=[len(text) for text in completions],
        tokens=frame["length"],
        truncated=frame["truncated"],
        repetition=[_repetition(text) for text in completions],
    )
    return numbers.astype("float32").assign(
        step=frame["step"],
        group=frame["group"],
        prompt=_codes(frame["prompt"].to_numpy(object)),
        text=_codes(frame["completion"].to_numpy(object)),
        answer=np.where(answers == "", 0, _codes(answers)),
    )


def _codes(texts: np.ndarray) -> np.ndarray:
    from pandas.util import hash_array

    return hash_array(texts, categorize=False).view(np.int64)


def _repetition(text: str) -> float:
    """Return how many times smaller the text is when packed; prose is 2 to 3."""
    content = text[-_LONGEST_END:].encode("utf-8", "replace")
    return len(content) / len(zlib.compress(content, 1)) if len(content) >= 200 else np.nan


def _add_texts(texts: dict[int, str], prompts: "Series", codes: "Series") -> None:
    """Add the short texts of new prompts by their codes."""
    for row, code in codes.drop_duplicates().items():
        if code not in texts:
            texts[code] = prompt_text({"prompt": prompts[row]})


def _with_some(samples: "DataFrame", frame: "DataFrame") -> "DataFrame":
    """Add some rows of a frame; at most twice as many as are wanted stay, of all frames alike."""
    import pandas as pd

    some = frame.sample(min(len(frame), _SAMPLES_OF_FRAME), random_state=0)
    joined = pd.concat([samples, some]) if len(some) else samples
    return joined if len(joined) <= 2 * _SAMPLES else joined.sample(_SAMPLES, random_state=0)


def _checked(chosen: Sequence[str], rollouts: "DataFrame") -> list[str]:
    names = [name.removeprefix(REWARD) for name in rollouts if name.startswith(REWARD)]
    if not {*chosen} <= {*names}:
        raise ValueError(
            f"No reward function named {'+'.join(chosen)!r} for --correct. There are"
            f" {', '.join(names)}."
        )
    return [*chosen]


def _points(values: "Series") -> np.ndarray:
    """Return (n, 2) steps and values; without those that are not known."""
    known = values.dropna()
    return np.column_stack([known.index, known]).astype(float)


def _share(groups: "DataFrame", chosen: "Series") -> "Series":
    """Return the share of the rollouts that are of the chosen groups, by step."""
    own = groups["rollouts"].where(chosen, 0).groupby(groups["step"]).sum()
    return own / groups.groupby("step")["rollouts"].sum()
