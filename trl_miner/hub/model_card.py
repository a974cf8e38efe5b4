"""The model card of a run: `card.jinja`, filled with the method's settings and the scores.

The trainer writes it into the run folder; a push writes it anew, from the record and the scores of
the run. All of these may be a stranger's: the template shows every value as text, but for those
that are `Markup`.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ..common.redaction import redact
from ..common.text import code_for_markdown, for_markdown, one_line
from ..data.benchmarks import BENCHMARKS
from ..data.prompt_form import read_form
from ..evaluation.metrics import bootstrap_interval
from ..runs.held_out import AFTER, HeldOut, read_held_out
from ..runs.models import ADAPTER
from ..runs.training_record import HUB_ID, papers_of, told_settings

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

TEMPLATE = Path(__file__).with_name("card.jinja")
PICTURE = "training.png"
_SHOWN = re.compile(
    r"(advantage_estimator|policy_loss)(_kwargs)?|all_right|all_wrong|correct_(threshold|reward_func)|"
    r"gate_on_correctness|"
    r"dose_share|prompt_selection|dynamic_sampling|asynchronous|max_staleness|token_budget|tool"
    r" functions|loss_type|"
    r"num_(generations|iterations)|temperature|learning_rate|beta|epsilon|epsilon_high|delta|"
    r"importance_sampling_level|rollouts per .*|max_completion_length"
)
# As the Hub has them; others would be links to elsewhere.
_ARXIV = re.compile(r"\d{4}\.\d{4,5}(v\d+)?", re.ASCII)
_USUAL_LENGTH = 512  # of the completion in the quick start
# The prompt of the quick start, in the form of the training prompts.
_CHAT = '[{"role": "user", "content": "Compute 12 + 7 - 5."}]'
_TEXT = '"Compute 12 + 7 - 5.\\n"  # plain text, in the form of the training prompts'


def make_card(
    folder: Path,
    record: Mapping[str, Any],
    *,
    name: str,
    evaluation: Mapping[str, Mapping[str, float]],
    moment: str = AFTER,
    benchmarks: Mapping[str, Any] | None = None,
    license: str | None = None,
) -> str:
    """Return the card of a run.

    Args:
        folder: Of the model, with the form of its prompts, and if there are such its picture and
            the counts behind `evaluation`, which give it an interval.
        record: Content of `training.json`; it may be empty.
        name: A repository on the Hub, or the last name of a folder.
        evaluation: Scores in [0, 1] by moment and metric: {"before": {"pass@1": 0.5}, ...}.
        moment: Of these weights, in `evaluation`.
        benchmarks: Of a `scores.json`.
        license: An identifier of the Hub.
    """
    from huggingface_hub import ModelCardData
    from jinja2 import Environment
    from markupsafe import Markup

    settings, versions = _shown_settings(record), dict(record.get("versions") or {})
    if record.get("git") and "trl_miner" in versions:
        versions["trl_miner"] += f" (git {record['git']})"
    moments = {
        name: scores
        for name, scores in evaluation.items()
        if name == moment or not name.startswith("step ")
    }
    metrics = dict.fromkeys(metric for scores in moments.values() for metric in scores)
    form = read_form(str(folder))
    base, dataset, is_adapter = (
        record.get("base_model"),
        record.get("dataset"),
        (folder / ADAPTER).is_file(),
    )
    base_id, dataset_id = _hub_id(base), _hub_id(dataset)
    papers = [
        (label, arxiv if _ARXIV.fullmatch(arxiv or "") else None)
        for label, arxiv in papers_of(record)
    ]
    results = _eval_results(benchmarks or {})
    tags = [f"arxiv:{arxiv}" for _, arxiv in papers if arxiv]
    data = ModelCardData(
        library_name="peft" if is_adapter else "transformers",
        license=license,
        pipeline_tag="text-generation",
        base_model=base_id,
        base_model_relation="adapter" if is_adapter and base_id else None,
        datasets=[dataset_id] if dataset_id else None,
        model_name=name if results else None,
        eval_results=results or None,
        tags=sorted(
            {"generated_from_trainer", "trl", *tags, *map(one_line, record.get("tags") or ())}
        ),
    )
    environment = Environment(
        autoescape=True,
        finalize=lambda value: value if hasattr(value, "__html__") else Markup(for_markdown(value)),
    )
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    shown = template.render(
        card_data=Markup(data.to_yaml()),
        title=name,
        model=Markup(json.dumps(name)),
        base=Markup(_link(base) or "a model made in code"),
        dataset=Markup(_link(dataset, "datasets/")),
        prompt=Markup(_CHAT if form is not None and form.style == "chat" else _TEXT),
        max_new_tokens=_length((record.get("settings") or {}).get("max_completion_length", "")),
        papers=papers,
        has_miner="miner" in (record.get("methods") or ()),
        about_scores=_about_scores(read_held_out(folder), record.get("held_out"), moment),
        settings=[[Markup(code_for_markdown(text)) for text in row] for row in settings.items()],
        has_picture=(folder / PICTURE).is_file(),
        moments=[moment.capitalize() for moment in moments],
        scores=[
            [metric.capitalize(), *(_share(scores.get(metric)) for scores in moments.values())]
            for metric in metrics
        ],
        benchmarks=[_benchmark_row(result) for result in (benchmarks or {}).values()],
        versions=[*versions.items()],
    )
    return redact(shown)


def _about_scores(
    held_out: HeldOut | None, source: Mapping[str, Any] | None, moment: str
) -> str | None:
    """Return on what the model was scored, and what chance does to the result."""
    scoring = held_out.moments.get(moment) if held_out else None
    counts = zip(scoring.num_correct, scoring.num_verdicts, strict=True) if scoring else ()
    rates = [right / scored for right, scored in counts if scored]
    if scoring is None or not rates:
        return None
    low, high = bootstrap_interval(rates)
    of = f" of {source['name']}" if source else ""
    return (
        f"Scored on {len(rates)} held-out problems{of}, with {scoring.num_samples} completions of each:"
        f" Pass@1 {fmean(rates):.3f}, 95 % interval {low:.3f} to {high:.3f} over problems."
    )


def _length(text: str) -> int:
    """Return a run's limit of completions, or the usual one for what is none."""
    known = re.fullmatch(r"([1-9][0-9]{0,7})(\.0)?", text)
    return int(known[1]) if known else _USUAL_LENGTH


def _shown_settings(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that matter most, and those of the run's methods."""
    own = tuple(f"{method}_" for method in record.get("methods") or ())
    return {
        name: text.removesuffix(".0")
        for name, text in told_settings(record).items()
        if name.startswith(own)
        or (_SHOWN.fullmatch(name) and text not in ("None", "False", "none"))
    }


def _link(named: Mapping[str, Any] | None, kind: str = "") -> str:
    """Return a link to a repository, the name of what is in none, or an empty text."""
    name = named["name"] if named else ""
    return (
        f"[{name}](https://huggingface.co/{kind}{name})"
        if _hub_id(named)
        else name and code_for_markdown(name)
    )


def _hub_id(named: Mapping[str, Any] | None) -> str | None:
    """Return the repository that a record names; None: it names none."""
    return (
        str(named["name"])
        if named and named["hub"] and HUB_ID.fullmatch(str(named["name"]))
        else None
    )


def _eval_results(benchmarks: Mapping[str, Any]) -> list["EvalResult"]:
    """Return Pass@1 on the benchmarks that have a data set on the Hub, for its `model-index`."""
    from huggingface_hub import EvalResult

    return [
        EvalResult(
            task_type="text-generation", dataset_type=known.hub, dataset_name=known.title,
            dataset_split=known.split, metric_type="pass@1", metric_name="Pass@1",
            metric_value=round(result["intervals"]["pass@1"]["mean"], 4),
        )
        for name, result in benchmarks.items()
        if (known := BENCHMARKS.get(name)) is not None and known.hub
    ]  # fmt: skip


def _benchmark_row(result: Mapping[str, Any]) -> list[Any]:
    means = [_with_interval(result["intervals"][name]) for name in ("pass@1", "pass@k", "maj@k")]
    return [*(result[name] for name in ("title", "problems", "samples", "k")), *means]


def _with_interval(score: Mapping[str, float]) -> str:
    """Return a mean, with its 95 % interval where that is recorded."""
    bounds = [_share(score[name]) for name in ("low", "high") if name in score]
    return _share(score["mean"]) + (f" ({' to '.join(bounds)})" if len(bounds) == 2 else "")


def _share(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3f}"
