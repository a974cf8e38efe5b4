"""The answer of a report in a few sentences: whether the runs differ from GRPO, and by how much."""

from collections.abc import Sequence

from ..evaluation.metrics import effect_text, interval_text
from ..runs.history import number
from .cells import counted, show_spread, spread, with_count
from .grouping import Method
from .held_out import ComparableRuns, Comparison, compare_with, families, ks_of
from .material import EvalResult

_MOST = 3  # methods with a sentence each, where none of them is MINER
_OF_ONE_SEED = "no verdict from one seed"


def verdicts(methods: Sequence[Method], scored: ComparableRuns | None, results: Sequence[EvalResult]) -> list[str]:
    """Return MINER's differences from GRPO, then which other methods differ; of one method what training changed."""
    if scored is not None and scored.baseline in (compared := families(scored)):
        return _against(scored, scored.baseline, compared[scored.baseline])
    if len(methods) == 1:
        return _before_and_after(methods[0])
    if methods:
        return [f"No verdict: {_obstacle(scored)}"]
    return ["For a verdict, problem by problem: trl-miner score FIRST SECOND."] if len(results) > 1 else []


def _against(scored: ComparableRuns, reference: str, others: Sequence[str]) -> list[str]:
    chosen = [scored.miner] if scored.miner in others else others[:_MOST]
    sentences, differing, are_of_one_seed = [], [], True
    for name, places in scored.ranges.items():
        for k in ks_of(scored):
            for one in compare_with(scored, reference, others, places, k):
                of, said = f"Pass@{k} on {name}", _in_words(one)
                if one.method in chosen:
                    seeds = "" if one.of_one_seed else f" ({counted(one.effect.num_seeds, 'seed')})"
                    sentences.append(f"{one.method} against {reference}, {of}: {said}{seeds}.")
                    continue
                are_of_one_seed = are_of_one_seed and one.of_one_seed
                if said.endswith(("better", "worse")):
                    differing.append(f"{one.method} {said.rpartition(' ')[2]} in {of}")
    if rest := len(others) - len(chosen):
        listed = "; ".join(differing) or (_OF_ONE_SEED if are_of_one_seed else "no difference shown")
        sentences.append(f"{counted(rest, 'other method')} against {reference}: {listed}.")
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


def _before_and_after(method: Method) -> list[str]:
    """Return the mean scores of the runs before and after training."""
    ends = [(run.scores[min(run.scores)], run.scores[max(run.scores)]) for run in method.runs if len(run.scores) > 1]
    names = [name for name in (ends[0][1] if ends else ()) if all(name in score for pair in ends for score in pair)]
    sentences = []
    for name in names:
        first, last = (_mean_percent([number(pair[at][name]) for pair in ends]) for at in (0, 1))
        of = f"{method.label}, {name.capitalize()} on held-out problems"
        sentences.append(f"{of}: {first} % before training, {last} % after.")
    return sentences or ["No verdict: no run was scored on held-out problems before and after. Set held_out."]


def _mean_percent(shares: Sequence[float | None]) -> str:
    measured = spread([None if share is None else 100 * share for share in shares])
    cell = show_spread(measured, "{:.1f}")
    return cell if measured is None else with_count(cell, measured["runs"], len(shares))
