"""Complete TRL's model card with the method's settings, the use of the rollouts, the scores and the versions.

The card is completed at the end of the training, and again from the run folder when it is pushed.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..redaction import redact
from ..runs.dose import KINDS, dose_of, dose_reached
from ..runs.history import RunHistory
from ..runs.segments import told
from ..runs.settings import clean_settings
from ..runs.training_record import HUB_ID, papers_of, read_run_record, run_record
from ..text import code_for_markdown, for_markdown, one_line

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

    from ..config import MinerGRPOConfig

# Texts of TRL's template, which tests/test_trl_contract.py watches: the section after the method, a missing model, and
# the code of the quick start, which needs a chat template.
MARKER = "### Framework versions"
NO_BASE_MODEL = "[None](https://huggingface.co/None)"
QUICK_START = re.compile(r"^question = .*?\n(?=```)", re.MULTILINE | re.DOTALL)
# For a run that was killed before TRL wrote its card.
EMPTY_CARD = f"""---
library_name: transformers
tags:
- generated_from_trainer
- trl
---

# Model Card for model

This model is a fine-tuned version of {NO_BASE_MODEL}.
It has been trained using [TRL](https://github.com/huggingface/trl).

## Quick start

```python
from transformers import pipeline

question = ""
```

## Training procedure

{MARKER}

"""
PICTURE = "training.png"
_SHOWN_METRICS = {
    "reward": "Reward",
    "groups/ph": "Prompts with all rollouts right",
    "rollouts/grpo": "Rollouts with an advantage under GRPO",
    "rollouts/used": "Rollouts with an advantage in this run",
}
_ASKED = "Compute 12 + 7 - 5."
_ARXIV = re.compile(r"\d{4}\.\d{4,5}", re.ASCII)
_LENGTH = re.compile(r"[1-9]\d{0,5}", re.ASCII)
_FRAMEWORKS = {"trl": "TRL", "transformers": "Transformers", "torch": "Pytorch", "vllm": "vLLM"}


@dataclass(frozen=True)
class RunFacts:
    """The facts that complete a card."""

    record: Mapping[str, Any] | None  # content of training.json; None for an older run, whose card keeps what it says
    log_history: Sequence[Mapping[str, Any]]  # of trainer_state.json
    evaluation: Mapping[str, Mapping[str, float]]  # in [0, 1] by moment and metric: {"before": {"pass@1": 0.5}, ...}
    model_name: str  # a repository on the Hub, or the last name of a folder
    moment: str = "after"  # of these weights, in `evaluation`
    benchmarks: Mapping[str, Any] | None = None  # of a scores.json
    is_adapter: bool = False
    has_picture: bool = False
    has_chat_template: bool = True  # decides where the record does not say whether prompts are conversations


def describe_run(
    card: str,
    *,
    base_model: str | None,
    args: "MinerGRPOConfig",
    log_history: Sequence[Mapping[str, Any]],
    evaluation: Mapping[str, Mapping[str, float]],
    is_chat: bool,
) -> str:
    """Return TRL's model card, completed for a run that has just ended; `is_chat`: its prompts are conversations."""
    folder = Path(args.output_dir)
    match = re.search(r" on the \[([^\]]*)\]", card)  # of a script of the user's own at most TRL knows the data set
    own = run_record(args, base_model=base_model, dataset=match[1] if match else None, held_out=None)
    record = read_run_record(folder) or own
    record["dataset"] = record.get("dataset") or own["dataset"]
    hub_model_id = getattr(args, "hub_model_id", None) if getattr(args, "push_to_hub", False) else None
    facts = RunFacts(
        record={**record, "is_chat": is_chat},
        log_history=log_history,
        evaluation=evaluation,
        model_name=hub_model_id or folder.resolve().name,
        is_adapter=(folder / "adapter_config.json").is_file(),
        has_picture=(folder / PICTURE).is_file(),
    )
    return complete_card(card, facts)


def complete_card(card: str, facts: RunFacts) -> str:
    """Return a card with the metadata and the sections of this run, which replace those of an earlier call."""
    from huggingface_hub import ModelCard

    parsed = ModelCard(card, ignore_metadata_errors=True)
    _complete_metadata(parsed.data, facts)
    metadata, text = str(parsed).split("\n---\n", 1)
    sections = {
        "Settings": _settings(facts.record),
        "What became of the rollouts": _prompts(facts),
        "Evaluation": _scores(facts.evaluation) + _benchmark_scores(facts.benchmarks),
        "License": _license(facts.record),
    }
    for title, body in sections.items():
        if body or title != "Settings":  # without a record, keep the settings that the card shows
            text = re.sub(rf"^### {title}\n.*?(?=^##|\Z)", "", text, flags=re.MULTILINE | re.DOTALL)
    added = "".join(f"### {title}\n\n{body}\n" for title, body in sections.items() if body)
    text = text.replace(MARKER, f"{added}{MARKER}", 1)
    return redact(f"{metadata}\n---\n{_complete_text(text, facts)}")


def _complete_metadata(data: Any, facts: RunFacts) -> None:
    record = facts.record or {}
    data.pop("licence", None)  # a slip in TRL's template
    data["model_name"] = one_line(facts.model_name.rpartition("/")[2])
    data["pipeline_tag"] = "text-generation"
    if facts.is_adapter:
        data["library_name"] = "peft"
    if Path(str(data.get("base_model") or "")).is_absolute():  # written by PEFT
        data.pop("base_model")
    for key, known in (("base_model", record.get("base_model")), ("datasets", record.get("dataset"))):
        if known is not None and _is_on_hub(known):
            data[key] = known["name"] if key == "base_model" else [known["name"]]
        elif facts.record is not None and (known is not None or key == "base_model"):
            data.pop(key, None)  # TRL takes a folder that is gone, or any data set, for a Hub id
    if facts.is_adapter and data.get("base_model"):
        data["base_model_relation"] = "adapter"
    for key in ("license", "license_name", "license_link"):
        if value := (record.get("license") or {}).get(key):
            data[key] = one_line(value)
    papers = [f"arxiv:{arxiv}" for _, arxiv in papers_of(record.get("methods") or (), record) if _is_arxiv(arxiv)]
    tags = [tag for tag in data.get("tags") or () if not tag.startswith("base_model:")]  # PEFT's, with a folder
    data["tags"] = sorted({*tags, *papers})
    data["eval_results"] = _eval_results(facts) or None


def _complete_text(text: str, facts: RunFacts) -> str:
    """Correct and complete TRL's sentences."""
    record = facts.record or {}
    base, dataset = record.get("base_model"), record.get("dataset")
    if base is not None:
        named = r"(fine-tuned version of )(\[[^\]]*\]\([^)]*\)|`[^`]*`)"
        text = re.sub(named, lambda match: match[1] + _link(base), text, count=1)
    text = text.replace(NO_BASE_MODEL, "a model made in code")
    if dataset is not None:
        text = re.sub(r" on the \S+ dataset\.$", ".", text, count=1, flags=re.MULTILINE)
        said = f" on the {_link(dataset, 'datasets/')} dataset."
        text = re.sub(r"(fine-tuned version of .*?)\.$", lambda m: m[1] + said, text, count=1, flags=re.MULTILINE)
    title = f"# Model Card for {for_markdown(facts.model_name)}"
    text = re.sub(r"^# Model Card for .*$", lambda _: title, text, count=1, flags=re.MULTILINE)
    text = QUICK_START.sub(lambda _: _quick_start(facts), text, count=1)
    model = json.dumps(facts.model_name)
    text = re.sub(r'(pipeline\([^)]*model=)"[^"]*"', lambda match: match[1] + model, text, count=1)
    return _complete_versions(text, record)


def _quick_start(facts: RunFacts) -> str:
    """Return code that asks the model in the form of its training prompts, for an answer as long as in training."""
    record = facts.record or {}
    most = str((record.get("settings") or {}).get("max_completion_length"))
    is_chat = facts.has_chat_template if record.get("is_chat") is None else record["is_chat"]
    chat = f'[{{"role": "user", "content": "{_ASKED}"}}]'
    prompt = chat if is_chat else f'"{_ASKED}\\n"  # plain text, in the form of the training prompts'
    return (
        f"prompt = {prompt}\n"
        f'generator = pipeline("text-generation", model="", device_map="auto")\n'
        f"output = generator(prompt, max_new_tokens={most if _LENGTH.fullmatch(most) else 512}, "
        f"return_full_text=False)[0]\n"
        f'print(output["generated_text"])\n'
    )


def _complete_versions(text: str, record: Mapping[str, Any]) -> str:
    versions = {name: for_markdown(version) for name, version in (record.get("versions") or {}).items()}
    own = {_FRAMEWORKS.get(name) or for_markdown(name): version for name, version in versions.items()}
    if record.get("git") and "trl_miner" in own:
        own["trl_miner"] += f" (git {for_markdown(record['git'])})"
    for label in ("trl_miner", "vLLM"):
        if label in own:
            text = re.sub(rf"^- {label}: .*\n", "", text, flags=re.MULTILINE)
    missing = [f"- {label}: {version}\n" for label, version in own.items() if f"\n- {label}: " not in text]
    return text.replace(f"{MARKER}\n\n", f"{MARKER}\n\n{''.join(missing)}", 1)


def _link(named: Mapping[str, Any], kind: str = "") -> str:
    name = named["name"]
    return f"[{name}](https://huggingface.co/{kind}{name})" if _is_on_hub(named) else code_for_markdown(name)


def _is_on_hub(named: Mapping[str, Any]) -> bool:
    """Return whether a record names a repository; the record may be a stranger's."""
    return bool(named["hub"]) and HUB_ID.fullmatch(str(named["name"])) is not None


def _is_arxiv(number: Any) -> bool:
    return isinstance(number, str) and _ARXIV.fullmatch(number) is not None


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _settings(record: Mapping[str, Any] | None) -> str:
    """Return the methods with their papers, and the settings that mattered."""
    if record is None:
        return ""
    listed = ""
    for label, arxiv in papers_of(record.get("methods") or (), record):
        paper = f": [arXiv {arxiv}](https://huggingface.co/papers/{arxiv})" if _is_arxiv(arxiv) else ""
        listed += f"- {for_markdown(label)}{paper}\n"
    settings = record.get("settings") or {}
    rows = [[code_for_markdown(name), code_for_markdown(value)] for name, value in settings.items()]
    return f"{listed}\n{_segments(record)}{_table(['Setting', 'Value'], rows)}"


def _segments(record: Mapping[str, Any]) -> str:
    """Return what has changed within the run; empty: it had the same settings from its start to its end."""
    rows = [
        [str(step), code_for_markdown(name), code_for_markdown(was), code_for_markdown(now)]
        for step, found in told(record.get("segments") or ())
        for name, (was, now) in sorted((found or {"all": ("not known", "below")}).items())
    ]
    if not rows:
        return ""
    return (
        f"The settings changed within the run. The second table has those of its last part.\n\n"
        f"{_table(['After step', 'Setting', 'Before', 'From there on'], rows)}\n"
    )


def _prompts(facts: RunFacts) -> str:
    logs = [log for log in facts.log_history if log.get("groups/ph") is not None]
    if not logs:
        return ""
    rows = [[title, _share(logs[0].get(key)), _share(logs[-1].get(key))] for key, title in _SHOWN_METRICS.items()]
    table = _dose(facts) + _table(["", "First step logged", "Last step logged"], rows)
    picture = f"\n![Reward, kinds of prompt, and rollouts that teach, by step]({PICTURE})\n"
    return table + (picture if facts.has_picture else "")


def _dose(facts: RunFacts) -> str:
    """Return sentences on the method of each kind of prompt, and on their dose."""
    settings = (facts.record or {}).get("settings")
    if not settings:
        return ""
    logs = [log for log in facts.log_history if "step" in log]
    since = max((segment["step"] for segment in (facts.record or {}).get("segments") or ()), default=0)
    dose = dose_of(RunHistory(Path(), "", logs, settings=clean_settings(settings), since=since))
    named = [f"{kind.replace('_', '-')} prompts: {code_for_markdown(dose.methods[kind])}" for kind in KINDS]
    text = f"Methods by the kind of prompt. {'; '.join(named).capitalize()}."
    mean, ends = dose_reached([dose])
    if dose.asked:
        text += f" Dose asked for: {dose.asked}." + (f" Reached: {mean} on average, {ends}." if mean else "")
    return f"{text}\n\n"


def _scores(evaluation: Mapping[str, Mapping[str, float]]) -> str:
    evaluation = {moment: scores for moment, scores in evaluation.items() if not moment.startswith("step ")}
    if not evaluation:
        return ""
    metrics = list(dict.fromkeys(metric for scores in evaluation.values() for metric in scores)) or ["pass@1"]
    rows = [
        [for_markdown(metric), *(_share(scores.get(metric)) for scores in evaluation.values())] for metric in metrics
    ]
    return _table(["Metric", *(for_markdown(moment.capitalize()) for moment in evaluation)], rows)


def _benchmark_scores(benchmarks: Mapping[str, Any] | None) -> str:
    if not benchmarks:
        return ""
    rows = []
    for result in benchmarks.values():
        means = [_share(result["intervals"][name]["mean"]) for name in ("pass@1", "pass@k", "maj@k")]
        rows.append([*(for_markdown(result[name]) for name in ("title", "problems", "samples", "k")), *means])
    header = ["Benchmark", "Problems", "Samples of each", "K", "Pass@1", "Pass@K", "Maj@K"]
    return f"\n{_table(header, rows)}"


def _license(record: Mapping[str, Any] | None) -> str:
    if record is None or (base := record.get("base_model")) is None:
        return ""
    license = record.get("license")
    named = f": {for_markdown(license.get('license_name', license['license']))}" if license else ", see there"
    named = named if _is_on_hub(base) else "; see the base model"
    return f"The license of the base model, {_link(base)}, applies to this model{named}.\n"


def _eval_results(facts: RunFacts) -> "list[EvalResult]":
    """Return the `model-index`: the scores of exactly these weights, as shares."""
    from huggingface_hub import EvalResult

    record = facts.record or {}
    url = f"https://huggingface.co/{facts.model_name}" if "/" in facts.model_name else None

    def result(metric: str, value: float, source_name: str, **dataset: Any) -> EvalResult:
        return EvalResult(
            task_type="text-generation",
            metric_type=metric,
            metric_name=metric.capitalize(),
            metric_value=value,
            source_name=source_name if url else None,
            source_url=url,
            **dataset,
        )

    name = (record.get("held_out") or record.get("dataset") or {"name": "held-out problems"})["name"]
    held_out = {"dataset_type": name.replace(" ", "-"), "dataset_name": f"{name} (held out)"}
    scores = facts.evaluation.get(facts.moment, {})
    results = [result(metric, value, "trl_miner, while training", **held_out) for metric, value in scores.items()]
    for name, benchmark in (facts.benchmarks or {}).items():
        source = benchmark.get("source") or {}
        dataset = {
            "dataset_type": source.get("hub") or source.get("built_in") or name,
            "dataset_name": benchmark["title"],
            "dataset_config": ", ".join(source.get("configs") or ()) or None,
            "dataset_split": source.get("split"),
            "dataset_revision": source.get("commit"),
        }
        metrics = {metric.replace("k", str(benchmark["k"])): metric for metric in ("pass@1", "pass@k", "maj@k")}
        for of_k, metric in metrics.items():  # Pass@K is Pass@1 where K is 1
            results.append(result(of_k, benchmark["intervals"][metric]["mean"], "trl-miner eval", **dataset))
    return results


def _share(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3f}"
