r"""Every prompt of this package, the same in training and evaluation. Imports nothing heavy.

- "math": the paper's "Training and evaluation prompt". The paper prints `\\boxed{}` there; the
  second backslash is an artefact of escaping. No blank follows "Assistant:": tokenizers put the
  blank in front of the next word.
- "choice": the paper's sentence for medical questions, after the question and its options. How it
  frames them is not stated: options one per line, and "User: ... Assistant:" for base models, are
  our choice.

A model that was trained is asked as in its training: its folder holds `prompt_form.json`,

    {"style": "chat", "system": null, "template": null, "template_kwargs": {"enable_thinking": false}}
"""

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from string import ascii_uppercase
from typing import Any, Literal

from .base_model import find_model
from .settings import DataArguments

Kind = Literal["math", "choice"]
STYLES = "plain", "chat", "verbatim"
Prompt = str | list[dict[str, str]]  # text as it stands, or messages for a chat template

FILE = "prompt_form.json"
MATH_INSTRUCTION = (
    "A conversation between User and Assistant. The user asks a question, and the Assistant solves"
    " it. The assistant first thinks about the reasoning process in the mind and then provides the"
    " user with the answer. The assistant thinks deeply and output the final answer within"
    " \\boxed{}."
)
CHOICE_INSTRUCTION = "Please reason step by step and output the final answer as `The answer is'"
CHOICE_WORDS = "{question}\n\n" + CHOICE_INSTRUCTION
# how prompts ask for an answer, and what it then looks like
FORMS = {
    r"\\boxed": r"\boxed{%s}",
    r"(?i)answer is\b": "The answer is %s.",
    r"(?i)answer\s*:": "Answer: %s",
    r"####": "#### %s",
    r"<answer>": "<answer>%s</answer>",
}


@dataclass(frozen=True)
class PromptForm:
    """All that turns a question into the tokens of a prompt, besides the tokenizer.

    Attributes:
        style: "plain" text, for base models; "chat" messages; "verbatim": the question is the
            prompt.
        system: A system prompt in place of the paper's instruction.
        template: A text with {question} in it, in place of all other words.
        template_kwargs: What the chat template gets besides the messages.
    """

    style: str = "plain"
    system: str | None = None
    template: str | None = None
    template_kwargs: Any = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.style not in STYLES:
            raise ValueError(f"prompt_style must be chat, plain or verbatim: got {self.style!r}.")
        if self.template and "{question}" not in self.template:
            raise ValueError(
                f"prompt_template must have {{question}} in it: got {self.template!r}."
            )


def build_prompt(
    kind: Kind,
    question: Prompt,
    options: Iterable[str] = (),
    *,
    form: PromptForm,
) -> Prompt:
    """Build the prompt of a problem: text for the style "plain", messages for "chat".

    Options are listed behind letters. Messages are a prompt already, of which only the style
    decides.

    >>> build_prompt("math", "3 + 4?", form=PromptForm(template="Q: {question} A:"))
    'Q: 3 + 4? A:'
    """
    if form.style == "verbatim" or (isinstance(question, list) and form.style == "chat"):
        return question
    if isinstance(question, list):
        return "\n\n".join(message["content"] for message in question)
    listed = "\n".join(map("{}. {}".format, ascii_uppercase, options))
    text = "\n\n".join(filter(None, (question, listed)))
    words, system = (CHOICE_WORDS, None) if kind == "choice" else ("{question}", MATH_INSTRUCTION)
    if form.template:
        words, system = form.template, None
    text, system = words.replace("{question}", text), form.system or system
    if form.style == "chat":
        messages = [{"role": "system", "content": system}] if system else []
        return [*messages, {"role": "user", "content": text}]
    before = f"{system}\n\n" if system else ""
    return before + (text if form.template else f"User: {text}\n\nAssistant:")


def form_asked_for(prompt: Prompt) -> str | None:
    """Return the form of an answer that a prompt asks for last; None: it asks for none.

    >>> form_asked_for("What is 3 + 4? End with `Answer: NUMBER`.")
    'Answer: %s'
    """
    found = ((each.end(), way) for way in FORMS for each in re.finditer(way, str(prompt)))
    return FORMS.get(max(found, default=(0, ""))[1])


def choose_form(args: DataArguments, model: str, tokenizer: Any) -> PromptForm:
    """Return the form in which a model is asked: what the settings say if they say anything, else
    the form of its training, else what its name suggests."""
    guessed = guess_style(model, tokenizer)
    form = load_form(model) or PromptForm(guessed)
    style, system, template = args.prompt_style, args.system_prompt, args.prompt_template
    if style or system or template:
        return PromptForm(style or guessed, system, template, form.template_kwargs)
    return form


def guess_style(model: str, tokenizer: Any) -> str:
    """Return the style that suits a model nobody wrote a form for, by its name (Hub id or path).

    A chat template alone is no sign: many base models ship one too (Qwen3-4B-Base). So "plain"
    means that there is no template, or that the last part of the name contains the word "base".
    """
    is_base = re.search(r"(?<![a-z])base(?![a-z])", Path(model).name, re.IGNORECASE)
    return "chat" if getattr(tokenizer, "chat_template", None) and not is_base else "plain"


def prompt_text(
    prompt: Prompt,
    tokenizer: Any,
    template_kwargs: Any = None,
) -> str:
    """Return a prompt as the model reads it."""
    if isinstance(prompt, str):
        return prompt
    options = {"add_generation_prompt": True, **(template_kwargs or {}), "tokenize": False}
    return str(tokenizer.apply_chat_template(prompt, **options))


def token_ids(
    prompt: Prompt,
    tokenizer: Any,
    template_kwargs: Any = None,
) -> list[int]:
    """Return the tokens of a prompt, as a training has them: in a chat those that the template
    writes alone."""
    text = prompt_text(prompt, tokenizer, template_kwargs)
    return list(tokenizer(text, add_special_tokens=isinstance(prompt, str))["input_ids"])


def save_form(folder: str | Path, form: PromptForm | None) -> None:
    """Write the form into a model's folder; None: it is not known."""
    if form is not None:
        text = json.dumps(asdict(form), indent=2, default=str)
        Path(folder, FILE).write_text(text, encoding="utf-8")


def load_form(model: str) -> PromptForm | None:
    """Return the form that a model (a folder, a Hub id, the embedded one) was trained on.

    None: nobody wrote it down, or its repository cannot be reached.
    """
    from huggingface_hub import hf_hub_download

    folder = Path(find_model(model))
    try:
        path = folder / FILE if folder.is_dir() else Path(hf_hub_download(model, FILE))
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError):  # no such file or repository, no network, no name of one
        return None
    return PromptForm(**json.loads(text))
