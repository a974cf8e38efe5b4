"""The model card of a run: `card.jinja`, filled with its record and its scores.

All of these may be a stranger's. So the template shows a value by the filter `text`.
"""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from ..common.redaction import hide
from ..data.prompts import load_form
from ..evaluation.held_out import Moment, read_held_out
from ..evaluation.metrics import bootstrap_interval
from ..run.record import Record, read_record

CARD, PICTURE = "README.md", "training.png"
# The settings of a card, as far as a run has them.
SHOWN = """
    advantage_estimator advantage_estimator_kwargs all_right miner_gamma miner_lambda_max
    miner_intrinsic policy_loss policy_loss_kwargs dynamic_sampling loss_type beta epsilon
    epsilon_high num_generations num_iterations optimizer_batch_size per_device_train_batch_size
    learning_rate temperature max_completion_length max_steps seed
    """.split()


def write_card(folder: Path, *, name: str | None = None) -> Path:
    """Write `README.md` of a run that has ended, and `training.png` beside it; return the card's
    path. `name` is its title (default: the folder's name)."""
    from ..report.plots import draw
    from ..report.runs import read_run

    with suppress(ValueError):  # nothing was logged
        draw([read_run(folder)], folder / PICTURE)
    path, record = folder / CARD, read_record(folder)
    path.write_text(make_card(folder, record, name=name or folder.resolve().name), "utf-8")
    return path


def make_card(
    folder: Path,
    record: Record | None,
    *,
    name: str,
    evaluation: Mapping[str, Any] | None = None,
    step: int | None = None,
) -> str:
    """Return the card of a run.

    Args:
        folder: Of the run; its `held_out.json`, form of prompts and picture are read, where there
            are such.
        record: Content of its `training.json`.
        name: A repository on the Hub, or the last name of a folder.
        evaluation: Content of the `scores.json` of `trl-miner eval`.
        step: The optimizer step that the weights are of; None: the run's last.

    Raises:
        ValueError: There is no record, as of a run of plain TRL.
    """
    from jinja2 import Environment

    if record is None:
        raise ValueError(f"{folder} has no training.json. Give a run that trl-miner train made.")
    is_adapter = (folder / "adapter_config.json").is_file()
    front = {
        "library_name": "peft" if is_adapter else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["trl", *(f"arxiv:{arxiv}" for arxiv in record.papers.values())],
    }
    for key, source in ("base_model", record.base_model), ("datasets", record.dataset):
        if source.on_hub:
            front[key] = source.name
    form = load_form(str(folder))
    moments = [
        (name, moment, *_interval(moment))
        for name, moment in read_held_out(folder).items()
        if moment.scores and (step is None or moment.step <= step)
    ]
    environment = Environment()
    environment.filters["text"] = text
    template = environment.from_string((Path(__file__).parent / "card.jinja").read_text("utf-8"))
    card = template.render(
        front=yaml.safe_dump(front),
        name=name,
        record=record,
        is_chat=form is not None and form.style == "chat",
        model=json.dumps(name),
        shown=SHOWN,
        has_picture=(folder / PICTURE).is_file(),
        moments=moments[:-1][:1] + moments[-1:],
        benchmarks=[*(evaluation or {}).values()],
    )
    return hide(card)


def text(value: Any) -> str:
    """Return a value as Markdown that shows it on one line, also in a table: as code, where it is
    not of letters, digits and the like."""
    shown = " ".join(str(value).split())
    if re.fullmatch(r"(?!.*www)[\w ./-]+", shown, re.ASCII):
        return shown
    return "`" + shown.replace("`", "'").replace("|", "\\|") + "`"


def _interval(moment: Moment) -> tuple[float, float]:
    counts = [count for count in moment.num_correct if count is not None]
    return bootstrap_interval([count / moment.num_samples for count in counts])
