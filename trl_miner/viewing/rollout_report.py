"""The part of a report that is made of the rollouts of one run: does it learn, and if not, why."""

from typing import TYPE_CHECKING

import numpy as np

from ..common.progress import duration
from ..common.tables import Table
from ..prompt_kinds import PromptKind
from ..runs.history import RunHistory
from ..trainer.prompt_keys import prompt_text
from .causes import LEAST_GROUPS, Evidence, find_causes
from .inputs import NOT_AVAILABLE
from .pages import Block, Section
from .prompt_outcomes import Outcomes
from .rollout_lines import REWARD
from .rollouts import HOW_TO_LOG
from .tables import counted

if TYPE_CHECKING:
    from pandas import DataFrame, Series

_END = 300  # characters of an answer
_LISTED = 12  # prompts of a table
_TITLES = {kind: kind.words.capitalize() for kind in PromptKind}
_WITHIN_MIXED = {1: "Mixed, right ones", 0: "Mixed, wrong ones"}
_GRESO_P = 0.5  # at which GRESO begins to generate a prompt without a gradient again


def rollout_sections(run: RunHistory, outcomes: Outcomes | None, prefix: str = "") -> list[Section]:
    """Return what is known of a run: causes first, then tables.

    A `prefix` begins the titles where there are several runs, of which a log alone is told only if
    it shows causes.
    """
    title, points = _verdict(run, outcomes)
    sections = [Section(prefix + title, [points])]
    if outcomes is None:
        return sections if not prefix or title.startswith("Why") else []
    blocks: list[Block] = [_overview(run, outcomes), _by_kind(run, outcomes), _of_rewards(outcomes)]
    return [
        *sections,
        Section(f"{prefix}Rollouts", [*blocks, [*outcomes.notes]]),
        Section(f"{prefix}Prompts", [*_turnover(outcomes), _savings(outcomes)]),
        Section(f"{prefix}Newest rollouts", [_newest(outcomes)]),
    ]


def _verdict(run: RunHistory, outcomes: Outcomes | None) -> tuple[str, list[str]]:
    """Return the title and the sentences that come first; none: nothing is known."""
    evidence = Evidence(outcomes, run.columns)
    causes, right = find_causes(evidence), evidence.right
    hint = [] if outcomes or run.settings else [HOW_TO_LOG]
    if causes:
        return "Why does it not learn?", [*map(str, causes), *hint]
    if right and evidence.learned:
        rise = f"Right answers rose from {right[0].mean:.0%} to {right[1].mean:.0%}"
        return "It learns", [f"{rise}, from the first quarter of the steps to the last."]
    if right:
        change = f"{right[0].mean:.0%} of the rollouts were right in the first quarter of the steps"
        hint = [f"{change}, {right[1].mean:.0%} in the last. The files show no cause."]
    elif outcomes and outcomes.decides:
        hint = [
            f"{counted(len(outcomes.groups), 'group')} of rollouts are too few to say:"
            f" {2 * LEAST_GROUPS} are needed."
        ]
    return "Does it learn?", hint


# Tables


def _newest(outcomes: Outcomes) -> Table | None:
    """Return the ends of the last rollouts of the last step, with their rewards."""
    if outcomes.newest is None or not len(outcomes.newest):
        return None
    rows = [
        [prompt_text({"prompt": row["prompt"]}), row["completion"][-_END:], f"{row['reward']:.4g}"]
        for row in outcomes.newest.to_dict("records")
    ]
    step = int(outcomes.newest["step"].iloc[-1])
    return Table(f"Step {step}", ["Prompt", "End of the answer", "Reward"], rows, is_text=True)


def _overview(run: RunHistory, outcomes: Outcomes) -> Table:
    """Return what the rollouts gave: first quarter of the steps, last one, whole run."""
    groups, rollouts = outcomes.groups, outcomes.rollouts
    idle = groups["spread"] == 0
    rows = [
        [
            "Rollouts without a gradient in GRPO",
            *_quarters(groups, groups["rollouts"] * idle, groups["rollouts"]),
        ]
    ]
    if outcomes.decides:
        rows.append(["Right answers", *_quarters(groups, groups["correct"], groups["scored"])])
        kinds = {kind.words: groups["kind"] == kind for kind in PromptKind}
        rows += [
            [f"Prompts: {kind}", *_quarters(groups, own)]
            for kind, own in kinds.items()
            if own.any()
        ]
    if len(rollouts):
        unit = "tokens" if rollouts["tokens"].notna().any() else "characters"
        is_idle = rollouts["group"].isin(groups["group"][idle])
        lengths = rollouts[unit]
        rows.append(
            [f"{unit.capitalize()} in these", *_quarters(rollouts, lengths * is_idle, lengths)]
        )
        rows.append([f"Mean length in {unit}", *_quarters(rollouts, lengths, form="{:,.0f}")])
    notes = [f"{groups['rollouts'].sum():,} rollouts of {len(outcomes.texts):,} different prompts."]
    notes += _seconds(run, groups)
    notes.append(_what_is_right(outcomes))
    header = ["", "First quarter", "Last quarter", "All"]
    return Table("What the rollouts gave", header, rows, notes)


def _quarters(
    table: "DataFrame", part: "Series", whole: "Series | None" = None, form: str = "{:.0%}"
) -> list[str]:
    """Return sums of a part of a whole, by default of 1 a row: in the first quarter of the steps, in
    the last one, and in all."""
    low, high = table["step"].quantile([0.25, 0.75])
    whole = part.notna() if whole is None else whole
    chosen = (table["step"] <= low, table["step"] >= high, slice(None))
    return [_ratio(part[rows].sum(), whole[rows].sum(), form) for rows in chosen]


def _what_is_right(outcomes: Outcomes) -> str:
    if not outcomes.decides:
        return "No reward says right or wrong: --correct NAME and --threshold say what does."
    guess = ", a guess by its name; --correct NAME names another" * outcomes.is_guess
    names = " and ".join(outcomes.decides)
    return f"Right is what {names} scores {outcomes.threshold:g} or more{guess}."


def _unused(groups: "DataFrame") -> int:
    return int(groups["rollouts"][groups["spread"] == 0].sum())


def _seconds(run: RunHistory, groups: "DataFrame") -> list[str]:
    """Say what the steps took, and which part of it the rollouts without a gradient had."""
    seconds = run.points("step_time")[:, 1]
    seconds = seconds[np.isfinite(seconds)]
    share = _unused(groups) / max(1, groups["rollouts"].sum())
    if not len(seconds) or not share:
        return []
    return [
        f"The {len(seconds):,} logged steps took {duration(seconds.mean() * len(seconds))};"
        f" {share:.0%} of that, {duration(share * seconds.sum())}, is the part of the rollouts"
        " without a gradient, if all cost the same."
    ]


def _by_kind(run: RunHistory, outcomes: Outcomes) -> Table | None:
    """Return length, cuts and repetition by kind of prompt, and within mixed ones by verdict."""
    if not len(outcomes.rollouts) or not outcomes.decides:
        return None
    rollouts = outcomes.rollouts
    notes = ["Means over rollouts. Repetition: how many times smaller a text is when packed."]
    if rollouts["truncated"].isna().all() and len(run.points("completions/clipped_ratio")):
        cut = _longest(rollouts, run.points("completions/clipped_ratio"))
        rollouts = rollouts.assign(truncated=cut)
        notes.append("Cut off: TRL logs their share alone; the longest of each batch are taken.")
    forms = {
        "characters": "{:,.0f}",
        "tokens": "{:,.0f}",
        "truncated": "{:.0%}",
        "repetition": "{:.1f}",
    }
    forms = {name: form for name, form in forms.items() if rollouts[name].notna().any()}
    kinds = rollouts["group"].map(outcomes.groups.set_index("group")["kind"].map(_TITLES))
    within = rollouts["correct"].map(_WITHIN_MIXED).where(kinds == _TITLES[PromptKind.MIXED])
    numbers = rollouts[[*forms]]
    parts = {title: own for label in (kinds, within) for title, own in numbers.groupby(label)}
    rows = [
        [title, f"{len(own):,}", *(_mean(own[name], form) for name, form in forms.items())]
        for title in (*_TITLES.values(), *_WITHIN_MIXED.values())
        if (own := parts.get(title)) is not None
    ]
    columns = [name.capitalize().replace("Truncated", "Cut off") for name in forms]
    return Table("By kind of prompt", ["Kind", "Rollouts", *columns], rows, notes)


def _longest(rollouts: "DataFrame", shares: np.ndarray) -> "Series":
    """Return 1 for as many of the longest rollouts of a step as its log says were cut off, else 0;
    NaN where no log does."""
    share = rollouts["step"].map(dict(shares.tolist()))
    rank = rollouts.groupby("step")["characters"].rank(method="first", pct=True)
    return (rank > 1 - share).astype(float).where(share.notna())


def _mean(values: "Series", form: str) -> str:
    return form.format(values.mean()) if values.notna().any() else NOT_AVAILABLE


def _of_rewards(outcomes: Outcomes) -> Table | None:
    """Return which reward drives the gradient: where it differs, and how advantages follow it."""
    rollouts = outcomes.rollouts
    if len(outcomes.functions) < 2 or not len(rollouts):
        return None
    centered = rollouts[[REWARD + name for name in outcomes.functions] + ["reward"]]
    centered = centered - centered.groupby(rollouts["group"]).transform("mean")
    by = centered.groupby(rollouts["group"])
    ranges = by.max() - by.min()
    moved = ranges[ranges["reward"] > 1e-6]
    correlations = centered.corrwith(centered["reward"])
    rows = [
        [
            name,
            *_quarters(rollouts, rollouts[REWARD + name], form="{:.3f}")[:2],
            _ratio((moved[REWARD + name] > 1e-6).sum(), len(moved)),
            _mean(correlations[[REWARD + name]], "{:.2f}"),
            "yes" if name in outcomes.decides else "no",
        ]
        for name in outcomes.functions
    ]
    header = ["Reward", "First quarter", "Last quarter", "Differs", "Correlation", "Decides"]
    notes = [
        "Differs: share of the prompts with a gradient in which its rollouts differ in this reward."
        " Correlation: with the total reward, within the rollouts of a prompt."
    ]
    return Table("Which reward drives the gradient", header, rows, notes)


def _turnover(outcomes: Outcomes) -> list[Block]:
    """Return how prompts changed that came several times, and those that never do."""
    if not outcomes.decides:
        return []
    groups = outcomes.groups[outcomes.groups["scored"] > 0]
    prompts = _by_prompt(groups)
    again = prompts[prompts["visits"] > 1]
    if not len(again):
        return [
            [f"{counted(len(prompts), 'prompt')}; none came twice, so none could be lost again."]
        ]
    kinds = {
        "Solved, and still": again["solved"] & again["ends"],
        "Solved once, lost again": again["solved"] & ~again["ends"],
        "Right at times, never by all rollouts": ~again["solved"] & (again["best"] > 0),
        "Never right": again["best"] == 0,
    }
    rows = [
        [title, f"{chosen.sum():,}", _ratio(chosen.sum(), len(again))]
        for title, chosen in kinds.items()
    ]
    notes = [f"Solved: all rollouts of a visit are right. {len(prompts) - len(again):,} came once."]
    blocks: list[Block] = [
        Table(
            "Prompts that came several times",
            ["How they came out", "Prompts", "Share"],
            rows,
            notes,
        )
    ]
    lost = again[kinds["Solved once, lost again"]].sort_values("last")
    never = again[kinds["Never right"]].sort_values("visits", ascending=False)
    for title, table in (("Lost again", lost), ("Never right", never)):
        blocks.append(_list_prompts(title, table, outcomes))
    return blocks


def _by_prompt(groups: "DataFrame") -> "DataFrame":
    """Return how each prompt came out over its visits."""
    rate, solved = groups["correct"] / groups["scored"], groups["kind"] == PromptKind.ALL_RIGHT
    by = groups.assign(rate=rate, solved=solved).groupby("prompt")
    last = by[["rate", "solved", "step"]].last().set_axis(["last", "ends", "step"], axis=1)
    return last.join(
        by.agg(visits=("step", "size"), best=("rate", "max"), solved=("solved", "max"))
    )


def _list_prompts(title: str, prompts: "DataFrame", outcomes: Outcomes) -> Table | None:
    rows = [
        [
            outcomes.texts.get(code, ""),
            f"{row.visits}",
            f"{row.best:.0%}",
            f"{row.last:.0%}",
            f"{row.step}",
        ]
        for code, row in prompts.head(_LISTED).astype(object).iterrows()
    ]
    more = [f"{len(prompts) - _LISTED:,} more."] * (len(prompts) > _LISTED)
    header = ["Prompt", "Visits", "Best", "Last", "Last step"]
    return Table(title, header, rows, more) if rows else None


def _savings(outcomes: Outcomes) -> Table:
    """Return what other ways to use these very rollouts would have saved or cost."""
    groups = outcomes.groups
    total = max(1, int(groups["rollouts"].sum()))
    used = 1 - _unused(groups) / total
    rows = [
        ["compute_less", f"leaves {1 - used:.0%} of the rollouts out of forward and backward"],
        [
            "dynamic_sampling",
            f"generates {1 / used:.1f} times as much for batches that are full of rollouts with a"
            " gradient" if used else "would never have filled a batch",
        ],
    ]  # fmt: skip
    skipped, lost = _greso(groups)
    if skipped:
        rows.append(
            ["prompt_selection: greso", f"skips {skipped / total:.0%} of the rollouts, and with them"
             f" {lost:.0%} of those with a gradient"]
        )  # fmt: skip
    if outcomes.decides:
        right = groups[(groups["kind"] == PromptKind.ALL_RIGHT) & (groups["spread"] == 0)]
        share = right["rollouts"].sum() / total
        rows.append(
            [
                "all_right: miner",
                f"gives {share:.0%} of the rollouts an advantage, those of all-right prompts",
            ]
        )
    notes = [
        "On these rollouts; another run would have gone on otherwise. greso: a prompt without a"
        f" gradient is generated again with probability {_GRESO_P} to the power of such visits in a"
        " row, before it adapts."
    ]
    return Table(
        "What other settings would have done",
        ["Setting", "With these rollouts"],
        rows,
        notes,
        is_text=True,
    )


def _greso(groups: "DataFrame") -> tuple[float, float]:
    """Return the expected rollouts that GRESO skips, and the share of those with a gradient that it
    would have lost."""
    is_idle = groups["spread"] == 0
    runs = (~is_idle).groupby(groups["prompt"]).cumsum()
    streak = is_idle.groupby([groups["prompt"], runs]).cumsum()
    before = streak.groupby(groups["prompt"]).shift(fill_value=0).astype(float)
    skipped = (1 - _GRESO_P**before) * groups["rollouts"]
    with_gradient = groups["rollouts"][~is_idle].sum()
    return float(skipped.sum()), float(skipped[~is_idle].sum() / max(1, with_gradient))


def _ratio(part: float, whole: float, form: str = "{:.0%}") -> str:
    return form.format(part / whole) if whole else NOT_AVAILABLE
