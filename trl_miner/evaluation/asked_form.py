"""The form of prompt in which `trl-miner eval` asks: of the options, of the training, or of the model's name."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

from ..data.prompt_form import describe, read_form
from ..data.prompts import PromptForm, guess_style
from .backends import ModelSource


def choose_form(
    model: str,
    source: ModelSource,
    tokenizer: Any,
    style: str = "auto",
    system: str | None = None,
    template: str | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
    *,
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
) -> PromptForm:
    """Return the form to ask a model in, and say where it is a guess or not that of the training.

    Args:
        model: As the user calls it.
        source: What is loaded.
        tokenizer: Its tokenizer.
        style: plain or chat instead of the training's; auto: as in the training.
        system: A system prompt instead of the training's; empty: the benchmark's own words.
        template: A template instead of the training's, likewise.
        template_kwargs: Instead of the training's.
        say: Gets the sentence.
    """
    names = [name for name in (source.adapter, model, source.model) if name]
    forms = (read_form(name, source.revision if name == source.model else None) for name in names)
    trained = next((form for form in forms if form is not None), None)
    known = trained or PromptForm(guess_style(model, tokenizer))
    chosen: Any = known.style if style == "auto" else style
    kwargs = known.template_kwargs if chosen == "chat" else {}
    form = PromptForm(
        chosen,
        known.system if system is None else system or None,
        known.template if template is None else template or None,
        kwargs if template_kwargs is None else template_kwargs,
    )
    if trained is None and style == "auto":
        say(_guess(model, form, tokenizer))
    elif trained is not None and form != trained:
        say(f"{model} was trained on {describe(trained)}. It is asked as the options say: {describe(form)}.")
    elif trained is not None and not trained.is_known:
        say(
            f"{model} was trained on its data set's own prompts, whose words are not known. It is asked with "
            f"{describe(form)}: set --prompt-template and --system-prompt if they were others."
        )
    return form


def _guess(model: str, form: PromptForm, tokenizer: Any) -> str:
    said = f"{model} does not say in which form it was trained. It is asked with {describe(form)}"
    if not getattr(tokenizer, "chat_template", None):
        return f"{said}: it has no chat template."
    other, why = ("plain", "does not call it") if form.style == "chat" else ("chat", "calls it")
    return f"{said}: it has a chat template, and its name {why} a base model. --style {other} chooses the other form."
