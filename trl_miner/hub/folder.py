"""Assemble the folder that is published: a model's files, its scores, and its card."""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..common.redaction import find_secret
from ..data.benchmarks import BENCHMARKS
from ..data.prompt_form import FILE as PROMPT_FORM
from ..runs.checkpoints import STATE, last_step
from ..runs.files import read_optional
from ..runs.held_out import AFTER, HeldOut, read_held_out, write_held_out
from ..runs.held_out import FILE as HELD_OUT
from ..runs.models import ADAPTER, CARD, INDEX, Model, weight_files
from ..runs.training_record import RECORD, read_run_record
from .model_card import PICTURE, make_card

# Everything that a model needs to run besides its weights, and no pickles.
_FILES = [
    *"""
    config.json generation_config.json adapter_config.json tokenizer.json
    tokenizer_config.json *.model *.tiktoken special_tokens_map.json added_tokens.json
    vocab.json vocab.txt merges.txt *.jinja additional_chat_templates/*.jinja
    chat_template.json preprocessor_config.json processor_config.json
    video_preprocessor_config.json
    """.split(),
    PROMPT_FORM,
    PICTURE,
]
_READ = (RECORD, HELD_OUT, STATE, INDEX)  # to make the card, and to find the weights
# A vocabulary may hold what has the name or the shape of a secret.
_VOCABULARIES = "tokenizer.json vocab.json vocab.txt merges.txt added_tokens.json".split()
# Benchmarks that are whole data sets with a leaderboard, and their tasks there
LEADERBOARDS = {"gsm8k": "gsm8k"}
_BINARY = (".safetensors", ".png", ".model", ".tiktoken", ".pt", ".pth", ".bin")


def assemble(
    model: Model, target: Path, *, name: str, benchmarks: Mapping[str, Any] | None = None
) -> Path:
    """Fill the empty folder `target` with everything that is published of a model, as links, and
    return it.

    `name` is the repository's, and `benchmarks` come from a `scores.json`. Raises ValueError if a
    file holds a secret, and OSError if one lies outside the run's folder, which may be a
    stranger's.
    """
    for folder in (model.run, model.weights):
        for path in (folder / name for name in _READ):
            if os.path.lexists(path):
                _check_place(path, model)
    is_adapter = (model.weights / ADAPTER).is_file()
    _link_files(model, target, without=("config.json",) if is_adapter else ())
    record = read_run_record(model.run)
    held_out, moment = _held_out(
        model, chose_best=record.get("settings", {}).get("load_best_model_at_end") == "True"
    )
    if held_out is not None:
        write_held_out(target, held_out)
    evaluation = {} if held_out is None else held_out.scores
    text = make_card(
        target, record, name=name, evaluation=evaluation, moment=moment, benchmarks=benchmarks,
        license=_license_of(record.get("base_model")),
    )  # fmt: skip
    (target / CARD).write_text(text, encoding="utf-8")
    _write_results(target, benchmarks or {})
    check_secrets(target)
    return target


def _license_of(base: Mapping[str, Any] | None) -> str | None:
    """Return the license of a base model on the Hub, which its fine-tuned versions have to keep;
    None: it is not known."""
    from huggingface_hub import HfApi

    if not base or not base["hub"]:
        return None
    try:
        card = HfApi().model_info(base["name"], timeout=5).card_data
    except Exception:  # no network or no such model: the card goes without
        return None
    name = card.get("license") if card else None
    return name if isinstance(name, str) and re.fullmatch(r"[a-z0-9.-]+", name) else None


def result_path(benchmark: str) -> str:
    """Return where the Hub looks for the result of a benchmark in a repository."""
    return f".eval_results/{benchmark}.yaml"


def _write_results(target: Path, benchmarks: Mapping[str, Any]) -> None:
    """Write the scores on benchmarks with a leaderboard on the Hub, of all of their problems."""
    import yaml
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    for name, task in LEADERBOARDS.items():
        benchmark, result = BENCHMARKS[name], benchmarks.get(name)
        if result is None or result["problems"] != benchmark.problems:
            continue
        score = result["intervals"]["pass@1"]
        notes = f"Pass@1 in percent, mean over {result['samples']} samples of each problem"
        if "low" in score:
            notes += f", 95 % interval {100 * score['low']:.2f} to {100 * score['high']:.2f}"
        entry = EvalResultEntry(benchmark.hub, task, round(100 * score["mean"], 2), notes=notes)
        path = target / result_path(name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(yaml.safe_dump(eval_result_entries_to_yaml([entry]), sort_keys=False))


def _link_files(model: Model, target: Path, without: Iterable[str]) -> None:
    files = {path.relative_to(model.weights): path for path in weight_files(model.weights)}
    for folder in (model.run, model.weights):  # a tokenizer may be in only one of them
        # with links to nothing
        there = [*folder.iterdir(), *(folder / "additional_chat_templates").glob("*")]
        found = [path for path in there if any(map(path.match, _FILES)) and not path.is_dir()]
        files |= {path.relative_to(folder): path for path in found if path.name not in without}
    for inner, path in files.items():
        _check_place(path, model)
        (target / inner).parent.mkdir(parents=True, exist_ok=True)
        (target / inner).symlink_to(path.resolve())


def _check_place(path: Path, model: Model) -> None:
    """Raise OSError for a link out of the run's folder, which may be a stranger's, and for what is
    no file."""
    real = path.resolve()
    problem = "it is no ordinary file, or a link to none" if not real.is_file() else ""
    if not real.is_relative_to(model.run.resolve()):
        problem = f"it leads out of {model.run.resolve()}, to {real}"
    if problem:
        raise OSError(
            f"{path} must be a file of its run to be published: {problem}. If it is yours, put the"
            " file itself there."
        )


def adapter_warning(weights: Path) -> str:
    """Return a warning for an adapter that nobody else can load, or an empty text."""
    base = read_optional(weights / ADAPTER).get("base_model_name_or_path")
    if not isinstance(base, str) or not (os.path.isabs(base) or os.path.exists(base)):
        return ""
    return (
        f"Warning: the adapter's base model is a folder of this machine, {base}. Nobody else can"
        " load it, and its path becomes public. Write the base model's Hub id into"
        " adapter_config.json (base_model_name_or_path)."
    )


def check_secrets(folder: Path) -> None:
    """Raise ValueError if a file to be published holds a secret, by its value, its shape or its
    name."""
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.suffix in _BINARY:
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        if found := find_secret(text, is_vocabulary=path.name in _VOCABULARIES):
            raise ValueError(
                f"A file to be published must not hold a secret: {path.name} has {found}. Remove it"
                " there, and replace the secret if the file was shared."
            )


def _held_out(model: Model, chose_best: bool) -> tuple[HeldOut | None, str]:
    """Return how held-out problems came out up to this model, and the moment that it is of."""
    held_out = read_held_out(model.run)
    if held_out is None or model.step is None:
        return held_out, AFTER
    moment = f"step {model.step}"
    # the last checkpoint is the final model, unless the run went back to its best one
    if held_out.after is not None and last_step(model.run) == model.step and not chose_best:
        held_out = replace(held_out, moments={**held_out.moments, moment: held_out.after})
    return held_out.until(model.step), moment
