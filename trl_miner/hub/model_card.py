"""The model card of a run: `card.jinja`, filled with the method's settings and the scores.

It is written at the end of the training, and again from the run folder when it is pushed. What the card in the run
folder has beside that stays: TRL's citations and badges, and the metadata and sections that a user has added.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..redaction import redact
from ..runs.held_out import AFTER
from ..runs.models import ADAPTER
from ..runs.training_record import HUB_ID, papers_of, read_run_record
from ..text import code_for_markdown, for_markdown, one_line

if TYPE_CHECKING:
    from ..config import MinerGRPOConfig

TEMPLATE = Path(__file__).with_name("card.jinja")
PICTURE = "training.png"
# For a run that was killed before TRL wrote its card.
EMPTY_CARD = "---\nlibrary_name: transformers\ntags: [generated_from_trainer, trl]\n---\n"
SECTIONS = ("Quick start", "Training procedure")  # the template writes them, in the place of TRL's
_SHOWN = re.compile(
    r"advantage_estimator|all_right|all_wrong|policy_loss|correct_(threshold|reward_func)|gate_on_correctness|"
    r"dose_share|prompt_selection|dynamic_sampling|asynchronous|max_staleness|token_budget|tool functions|loss_type|"
    r"num_(generations|iterations)|temperature|learning_rate|beta|epsilon|epsilon_high|delta|"
    r"importance_sampling_level|rollouts per .*|max_completion_length"
)
# The prompt of the quick start, in the form of the training prompts.
_CHAT = '[{"role": "user", "content": "Compute 12 + 7 - 5."}]'
_TEXT = '"Compute 12 + 7 - 5.\\n"  # plain text, in the form of the training prompts'


def describe_run(card: str, args: "MinerGRPOConfig", evaluation: Mapping[str, Mapping[str, float]]) -> str:
    """Return the card of a run that has just ended, from TRL's."""
    folder = Path(args.output_dir)
    name = (args.hub_model_id if args.push_to_hub else None) or folder.resolve().name
    return complete_card(card, folder, read_run_record(folder), name=name, evaluation=evaluation)


def complete_card(
    card: str,
    folder: Path,
    record: Mapping[str, Any],
    *,
    name: str,
    evaluation: Mapping[str, Mapping[str, float]],
    moment: str = AFTER,
    benchmarks: Mapping[str, Any] | None = None,
) -> str:
    """Return the card of a run, with the further metadata, sections and badges of the `card` that it has already.

    Args:
        card: The text of a card.
        folder: Of the model, with its picture if there is one.
        record: Content of `training.json`; it may be empty.
        name: A repository on the Hub, or the last name of a folder.
        evaluation: Scores in [0, 1] by moment and metric: {"before": {"pass@1": 0.5}, ...}.
        moment: Of these weights, in `evaluation`.
        benchmarks: Of a `scores.json`.

    Raises:
        ValueError: The metadata of `card` cannot be read.
    """
    import yaml
    from huggingface_hub import ModelCard

    try:
        earlier = ModelCard(card, ignore_metadata_errors=True)
    except (ValueError, TypeError, RecursionError, yaml.YAMLError) as error:
        raise ValueError(
            f"The metadata of the run's README.md must be YAML: {one_line(error, 200)}. Repair it, or delete the file."
        ) from error
    data: Any = earlier.data
    benchmarks = benchmarks or {}
    _set_metadata(data, record, (folder / ADAPTER).is_file())
    dataset = record.get("dataset") or {"name": (data.datasets or [""])[0], "hub": True}
    settings, versions = _shown_settings(record), dict(record.get("versions") or {})
    if record.get("git") and "trl_miner" in versions:
        versions["trl_miner"] += f" (git {record['git']})"
    moments = {name: scores for name, scores in evaluation.items() if name == moment or not name.startswith("step ")}
    metrics = dict.fromkeys(metric for scores in moments.values() for metric in scores)
    sections = re.split(r"^(?=## )", earlier.text, flags=re.MULTILINE)[1:]
    shown = ModelCard.from_template(
        data,
        template_path=str(TEMPLATE),
        title=for_markdown(name),
        model=json.dumps(name),
        base=_link(record.get("base_model")) or "a model made in code",
        dataset=_link(dataset, "datasets/") if dataset["name"] else "",
        prompt=_CHAT if record.get("is_chat") else _TEXT,
        max_new_tokens=settings.get("max_completion_length", 512),
        badges=[line for line in earlier.text.splitlines() if line.startswith("[<img ")],
        papers=[(for_markdown(label), arxiv) for label, arxiv in papers_of(record)],
        settings=[[code_for_markdown(text) for text in row] for row in settings.items()],
        has_picture=(folder / PICTURE).is_file(),
        moments=[for_markdown(moment.capitalize()) for moment in moments],
        scores=[[metric, *(_share(scores.get(metric)) for scores in moments.values())] for metric in metrics],
        benchmarks=[_benchmark_row(result) for result in benchmarks.values()],
        versions=[(for_markdown(name), for_markdown(text)) for name, text in versions.items()],
        sections="".join(one for one in sections if one[3:].partition("\n")[0].strip() not in SECTIONS).strip(),
    )
    return redact(str(shown))


def _shown_settings(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that matter most, and those of the run's methods."""
    own = tuple(f"{method}_" for method in record.get("methods") or ())
    return {
        name: text.removesuffix(".0")
        for name, text in (record.get("settings") or {}).items()
        if name.startswith(own) or (_SHOWN.fullmatch(name) and text not in ("None", "False", "none"))
    }


def _set_metadata(data: Any, record: Mapping[str, Any], is_adapter: bool) -> None:
    """Put what is known of the run into the metadata that a card had."""
    for name in ("licence", "model_name"):  # a slip in TRL's template; the name of a folder
        data.pop(name, None)
    data["eval_results"] = None  # of an earlier card
    data["pipeline_tag"] = "text-generation"
    # PEFT writes the folder of a base model, and TRL takes any data set for a Hub id.
    base, dataset, datasets = record.get("base_model"), record.get("dataset"), data.get("datasets")
    data["base_model"] = base["name"] if base and _is_on_hub(base) else None
    data["datasets"] = [datasets] if isinstance(datasets, str) else datasets if isinstance(datasets, list) else None
    if dataset:
        data["datasets"] = [dataset["name"]] if _is_on_hub(dataset) else None
    if is_adapter:
        data["library_name"] = "peft"
        data["base_model_relation"] = "adapter" if data["base_model"] else None
    papers = {f"arxiv:{arxiv}" for _, arxiv in papers_of(record) if arxiv}
    tags = {tag for tag in map(str, data.get("tags") or ()) if not tag.startswith("base_model:")}  # PEFT's: a folder
    data["tags"] = sorted(tags | papers)


def _link(named: Mapping[str, Any] | None, kind: str = "") -> str:
    if named is None:
        return ""
    name = named["name"]
    return f"[{name}](https://huggingface.co/{kind}{name})" if _is_on_hub(named) else code_for_markdown(name)


def _is_on_hub(named: Mapping[str, Any]) -> bool:
    """Return whether a record names a repository."""
    return bool(named["hub"]) and HUB_ID.fullmatch(str(named["name"])) is not None


def _benchmark_row(result: Mapping[str, Any]) -> list[str]:
    means = [_share(result["intervals"][name]["mean"]) for name in ("pass@1", "pass@k", "maj@k")]
    return [*(for_markdown(result[name]) for name in ("title", "problems", "samples", "k")), *means]


def _share(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3f}"
