"""What a run's records say for certain: sentences without a threshold, each with the page on it."""

from typing import TYPE_CHECKING

from .runs import RunLog

if TYPE_CHECKING:
    from pandas import DataFrame

# Columns in which reference answers are logged, by `log_extra("solution", solution)`.
REFERENCES = ("solution", "reference", "ground_truth", "gold", "answer", "target")
GRADED = 2000  # completions that are graded again, at most: by chance
SHOWN = 5
_TAIL = 100  # characters of a completion that are shown


def facts(run: RunLog) -> list[str]:
    """Return at most five facts of a run, the gravest first, each with a page of the docs."""
    found = []
    reward, rates = run.log["reward"], run.log.get("learning_rate")
    # of all completions: `reward_std` is TRL's mean over prompts, 0 where each prompt has its own
    spread = run.log.filter(regex="^rewards/.*/std$")
    if reward.nunique() == 1 and not (spread.empty or spread.to_numpy().any()):
        found.append(
            f"The reward never varied: it was {reward.max():g} throughout. (docs: rewards)"
        )
    if rates is not None and rates.notna().any() and not rates.any():
        found.append("The learning rate was zero in every logged step. (docs: troubleshooting)")
    if idle := _without_gradient(run):
        found.append(f"{idle} (docs: method)")
    if (cut := run.mean("completions/clipped_ratio")) > 0:
        found.append(
            f"{cut:.1%} of the completions were cut off at max_completion_length."
            " (docs: troubleshooting)"
        )
    if not any(name.startswith("eval_") for name in run.log):
        found.append(
            "Nothing was held out: all scores are of problems that were trained on."
            " (docs: your_data)"
        )
    return found


def _without_gradient(run: RunLog) -> str:
    of_grpo = run.mean("completions/grpo")
    if not of_grpo < 1:
        return ""
    if (more := run.mean("completions/used") - of_grpo) > 0:
        return (
            f"GRPO gives {1 - of_grpo:.1%} of these completions no gradient; this run used"
            f" {more:.1%} of all beside GRPO's."
        )
    text = (
        f"{1 - of_grpo:.1%} of the completions had no gradient: their prompts' rewards are equal."
    )
    if "groups/ph" in run.log:
        # MINER's credit is a share of the mixed prompts': a batch without any has none to share.
        usable = run.log["groups/ph"].where(run.log["groups/he"] > 0, 0.0)[
            run.log["groups/ph"].notna()
        ]
        text += f" {usable.mean():.1%} of all are of all-right prompts, from which MINER learns."
    return text


def contradictions(run: RunLog) -> tuple[str, "DataFrame | None"]:
    r"""Return how many recorded rewards our grader contradicts, as a sentence, and the first.

    Compared are completions with a reward at or above the threshold, or of at most 0: what lies
    between is neither correct nor wrong. The grader reads answers outside `\boxed{}`, too. Without
    logged reference answers, or where several rewards may decide, the sentence is empty.

    Returns:
        The sentence, and a table with the columns completion (its end), reference, recorded, ours.
    """
    table = run.completions
    reference = next((name for name in REFERENCES if table is not None and name in table), None)
    if table is None or reference is None or run.verifier not in table:
        return "", None
    from ..grading import grade

    rewards = table[run.verifier]
    table = table.assign(recorded=rewards >= run.threshold, reference=table[reference])
    table = table[table["recorded"] | (rewards <= 0)].dropna(subset="reference")
    part = table.sample(min(GRADED, len(table)), random_state=0)
    golds = [*map(str, part["reference"])]
    verdicts = grade("math", [*part["completion"]], golds, unboxed=True)
    part = part.assign(ours=[verdict.is_correct for verdict in verdicts]).dropna(subset="ours")
    found = part[part["ours"] != part["recorded"]].sort_index()
    paid = found["recorded"].sum()
    text = (
        f"Of {len(part)} recorded rewards, drawn from {len(table)}, our grader contradicts"
        f" {len(found)}: {paid} were paid for a wrong answer, {len(found) - paid} refused to a"
        " correct one. (docs: rewards)"
    )
    first = found.head(SHOWN).replace({True: "correct", False: "wrong"})
    first["completion"] = first["completion"].str.split().str.join(" ").str[-_TAIL:]
    return text, first[["completion", "reference", "recorded", "ours"]]
