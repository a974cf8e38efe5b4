"""`prompt_form.json` in the folder of a trained model: the form of the prompts that it was trained
on.

{"style": "chat", "system_prompt": null, "prompt_template": "{question}",
 "chat_template_kwargs": {"enable_thinking": false}, "is_known": true}

Every model that is saved has one, checkpoints and adapters too; pushing uploads it, and evaluating
follows it: asked in another form, a model would score less. The template of a data set's own
prompts is found in its rows.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence, Sized
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from ..common.redaction import redact
from ..runs.files import read_object, write_json
from ..runs.records import FormFile
from .prompts import STYLES, Kind, PromptForm, Style, build_prompt, guess_style
from .worlds import WORLDS

FILE = "prompt_form.json"
QUESTION = "{question}"
ROWS = 100  # of a training set, whose prompts are looked at
_RECORD = TypeAdapter(FormFile)
_GAP = "\0"  # stands for a question
Row = Mapping[str, Any]


def write_form(folder: Path, form: PromptForm | None) -> None:
    """Write the form into a model's folder; None: it is not known, and a file of an earlier model
    goes."""
    if form is None:
        return (folder / FILE).unlink(missing_ok=True)
    content = {
        "style": form.style,
        "system_prompt": form.system,
        "prompt_template": form.template,
        "chat_template_kwargs": dict(form.template_kwargs),
    }
    # without secrets, and what JSON has no words for
    written = json.loads(json.dumps(redact(content), default=str))
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / FILE, {**written, "is_known": form.is_known and written == content})


def read_form(model: str, revision: str | None = None) -> PromptForm | None:
    """Return the form that a model (a folder, a Hub id, a world) was trained on; None: nobody wrote
    it down.

    Raises:
        ValueError: The file is damaged.
    """
    if model in WORLDS:  # whose base model knows bare questions
        return PromptForm(template=QUESTION)
    path = find_file(model, FILE, revision)
    if path is None:
        return None
    record = read_object(path, "Correct it, or delete it and choose the form by hand.", _RECORD)
    words = record.get("system_prompt"), record.get("prompt_template")
    try:
        return PromptForm(
            record["style"], *words, record["chat_template_kwargs"], record["is_known"]
        )
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def find_file(model: str, name: str, revision: str | None = None) -> Path | None:
    """Return a file of a model's folder or Hub repository; None: it has none, or cannot be
    reached."""
    if os.path.isdir(model):
        path = Path(model, name)
        return path if path.is_file() else None
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        return Path(hf_hub_download(model, name, revision=revision)).resolve()
    except (
        HFValidationError,
        HfHubHTTPError,
        OSError,
        ValueError,
    ):  # also for a file that the repository lacks
        return None


def style_of(model: str, tokenizer: Any, revision: str | None = None) -> Style:
    """Return the style of a model's prompts: that of its training, or else the one that its name
    suggests."""
    form = read_form(model, revision)
    return guess_style(model, tokenizer) if form is None else form.style


def describe(form: PromptForm) -> str:
    """Return a form in words."""
    parts = ["messages in the chat template" if form.style == "chat" else "plain text"]
    parts += [f"{name}={value!r}" for name, value in form.template_kwargs.items()]
    parts += [f"system prompt {form.system!r}"] if form.system is not None else []
    parts += [f"template {form.template!r}"] if form.template is not None else []
    return ", ".join(parts)


# The form of prompts that a data set brings


def form_of_rows(
    rows: Iterable[Row], template_kwargs: Mapping[str, Any] | None = None
) -> PromptForm | None:
    """Return the form of a data set's own prompts, found in some rows; None: they have no column
    `prompt`.

    Prompts in the words of `build_prompt` have its form. Else the template is what stands around
    the text of another column, if that is the same in all rows; else it is not known. The rows
    should be all of a data set, since it may have several parts; of a stream the first are read.
    """
    seen = [row for row in _some(rows) if row.get("prompt") is not None]
    if not seen:
        return None
    is_text = isinstance(seen[0]["prompt"], str)
    style, kwargs = STYLES[0 if is_text else 1], {} if is_text else dict(template_kwargs or {})
    parts = [_split(row["prompt"]) for row in seen]
    systems = {part[0] for part in parts if part is not None}
    # several turns, pictures, or a system prompt for each question
    if None in parts or len(systems) != 1:
        return PromptForm(style, None, QUESTION, kwargs, is_known=False)
    (system,) = systems
    texts = [part[1] for part in parts if part is not None]
    template = _template_of_column(seen, texts)
    if any(_is_ours(kind, style, system, texts, template) for kind in ("math", "choice", "task")):
        return PromptForm(style, template_kwargs=kwargs)
    return PromptForm(style, system, template or QUESTION, kwargs, is_known=template is not None)


def _some(rows: Iterable[Row]) -> Iterable[Row]:
    """Return up to `ROWS` rows, evenly spaced; of a stream the first."""
    if not isinstance(rows, Sized):
        return islice(rows, ROWS)
    at: Any = rows
    return (at[place] for place in range(0, len(rows), -(-len(rows) // ROWS) or 1))


def _split(prompt: Any) -> tuple[str | None, str] | None:
    """Return the system prompt and the words of the user; None: it is no single question in
    text."""
    if isinstance(prompt, str):
        return None, prompt
    contents = {message["role"]: message.get("content") for message in prompt}
    roles = [message["role"] for message in prompt]
    if roles not in (["user"], ["system", "user"]) or not all(
        isinstance(text, str) for text in contents.values()
    ):
        return None
    return contents.get("system"), contents["user"]


def _is_ours(
    kind: Kind, style: Style, system: str | None, texts: Sequence[str], template: str | None
) -> bool:
    """Return whether all prompts have the words of `build_prompt` around their questions, and no
    others."""
    ours = _split(
        build_prompt(kind, _GAP, [_GAP, _GAP] if kind == "choice" else (), form=PromptForm(style))
    )
    assert ours is not None, "build_prompt gives one question"
    before, *_, after = ours[1].split(_GAP)
    has_words = all(
        text.startswith(before) and text[len(before) :].endswith(after) for text in texts
    )
    own_template = None if kind == "choice" else template  # whose options a template would repeat
    return system == ours[0] and has_words and own_template in (None, before + QUESTION + after)


def _template_of_column(rows: Sequence[Row], texts: Sequence[str]) -> str | None:
    """Return the template that gives the texts of all rows from one of their columns; None: there
    is none."""
    templates = []
    for name, value in rows[0].items():
        if name == "prompt" or not isinstance(value, str) or not value or value not in texts[0]:
            continue
        template = texts[0].replace(value, QUESTION)
        others = [str(row.get(name)) for row in rows]
        if len({*others}) > 1 and all(
            template.replace(QUESTION, other) == text
            for other, text in zip(others, texts, strict=True)
        ):
            templates.append(template)
    return min(templates, key=len, default=None)  # of a question and a part of it, the question
