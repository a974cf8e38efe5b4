"""The answer of a report in a few sentences: whether the runs differ from GRPO, and by how much."""

from collections.abc import Sequence

from ..evaluation.metrics import effect_text, interval_text
from ..runs.history import RunHistory
from .cells import counted, spread_text
from .grouping import Method
from .held_out import ComparableRuns, Comparison

_MOST = 3  # methods with a sentence each, where none of them is called miner
_OF_ONE_SEED = "no verdict from one seed"


def verdicts(
    methods: Sequence[Method], scored: ComparableRuns | None, compared: Sequence[Comparison], num_results: int
) -> list[str]:
    """Return MINER's differences from GRPO, then which other methods differ; of one method what training changed."""
    if scored is not None and compared:
        return _against(scored.baseline, compared)
    if len(methods) == 1:
        return _before_and_after(methods[0].label, methods[0].runs)
    if methods:
        return [f"No verdict: {_obstacle(scored)}"]
    return ["For a verdict, problem by problem: trl-miner score FIRST SECOND."] if num_results > 1 else []


def _against(baseline: str | None, compared: Sequence[Comparison]) -> list[str]:
    labels = list(dict.fromkeys(one.method.label for one in compared))
    chosen = ["miner"] if "miner" in labels else labels[:_MOST]
    sentences, differing = [], []
    for one in compared:
        label, of, said = one.method.label, f"Pass@{one.k} on {one.problems}", _in_words(one)
        if label in chosen:
            seeds = "" if one.of_one_seed else f" ({counted(one.effect.num_seeds, 'seed')})"
            sentences.append(f"{label} against {baseline}, {of}: {said}{seeds}.")
        elif said.endswith(("better", "worse")):
            differing.append(f"{label} {said.rpartition(' ')[2]} in {of}")
    others = [one for one in compared if one.method.label not in chosen]
    if others:
        nothing = _OF_ONE_SEED if all(one.of_one_seed for one in others) else "no difference shown"
        listed = "; ".join(differing) or nothing
        sentences.append(f"{counted(len(labels) - len(chosen), 'other method')} against {baseline}: {listed}.")
    return sentences


def _in_words(one: Comparison) -> str:
    effect = one.effect
    if one.adjusted is None:  # one seed and one problem: no interval
        return f"{100 * effect.difference:+.2f} points: {_OF_ONE_SEED}"
    if one.of_one_seed:
        return f"{interval_text(effect.difference, effect.low, effect.high)} of problems: {_OF_ONE_SEED}"
    return effect_text(effect.difference, effect.low, effect.high, one.adjusted)


def _obstacle(scored: ComparableRuns | None) -> str:
    if scored is None:
        return "no finished run counted its right answers to held-out problems. Set held_out."
    if scored.baseline is None:
        return "none of these runs is plain GRPO. Add some, with the same seeds."
    return f"no other run shares its seed and its held-out problems with one of {scored.baseline}. Train such a pair."


def _before_and_after(label: str, runs: Sequence[RunHistory]) -> list[str]:
    """Return the mean scores of the runs before and after training."""
    ends = [(run.scores[min(run.scores)], run.scores[max(run.scores)]) for run in runs if len(run.scores) > 1]
    names = [name for name in (ends[0][1] if ends else ()) if all(name in score for pair in ends for score in pair)]
    sentences = []
    for name in names:
        first, last = (spread_text([100 * pair[at][name] for pair in ends], "{:.1f}") for at in (0, 1))
        of = f"{label}, {name.capitalize()} on held-out problems"
        sentences.append(f"{of}: {first} % before training, {last} % after.")
    return sentences or ["No verdict: no run was scored on held-out problems before and after. Set held_out."]
