r"""Every prompt of this package, the same in training and evaluation. Imports nothing heavy.

- "math": the paper's "Training and evaluation prompt". The paper prints `\\boxed{}` there; the
  second backslash is an artefact of escaping. No blank follows "Assistant:": tokenizers put the
  blank in front of the next word.
- "choice": the paper's sentence for medical questions, after the question and its options. How it
  frames them is not stated: options one per line, and "User: ... Assistant:" for base models, are
  our choice.

A model that was trained is asked as in its training: its folder holds `prompt_form.json`,

    {"style": "chat", "system": null, "template": "{question}",
     "template_kwargs": {"enable_thinking": false}}
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from string import ascii_uppercase
from typing import Any, Literal

from .base_model import find_model

Kind = Literal["math", "choice"]
Style = Literal["plain", "chat"]
Message = dict[str, str]

FILE = "prompt_form.json"
QUESTION = "{question}"
MATH_INSTRUCTION = (
    "A conversation between User and Assistant. The user asks a question, and the Assistant solves"
    " it. The assistant first thinks about the reasoning process in the mind and then provides the"
    " user with the answer. The assistant thinks deeply and output the final answer within"
    " \\boxed{}."
)
CHOICE_INSTRUCTION = "Please reason step by step and output the final answer as `The answer is'"

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
        style: "plain" text, for base models, or "chat" messages.
        system: A system prompt in place of the paper's instruction; None: the kind of problem
            decides.
        template: A text with {question} in it, in place of all other words; None: the kind of
            problem decides.
        template_kwargs: What the chat template gets besides the messages.
    """

    style: Style = "plain"
    system: str | None = None
    template: str | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.style not in ("plain", "chat"):
            raise ValueError(f"prompt_style must be chat, plain or verbatim: got {self.style!r}.")
        if self.template is not None and QUESTION not in self.template:
            raise ValueError(
                f"prompt_template must have {QUESTION} where the question goes: got"
                f" {self.template!r}."
            )


VERBATIM = PromptForm(template=QUESTION)  # the question is the prompt


def build_prompt(
    kind: Kind,
    question: str | list[Message],
    options: Sequence[str] = (),
    context: str = "",
    *,
    form: PromptForm = PromptForm(),
) -> str | list[Message]:
    """Build the prompt of a problem: text for the style "plain", messages for "chat".

    Messages are a prompt already. Options are listed behind letters, unless the question lists
    them, and the context stands before the question.

    >>> build_prompt("math", "What is 3 + 4?", form=VERBATIM)
    'What is 3 + 4?'
    """
    if isinstance(question, list):
        return question
    text = f"{context}\n\n{question}" if context else question
    if options and not lists_options(question, options):
        lettered = map("{}. {}".format, ascii_uppercase, options)
        text = f"{text}\n\n" + "\n".join(lettered)
    system = form.system
    if form.template is not None:
        text = form.template.replace(QUESTION, text)
    elif kind == "choice":
        text = f"{text}\n\n{CHOICE_INSTRUCTION}"
    elif system is None:
        system = MATH_INSTRUCTION
    if form.style == "chat":
        messages = [{"role": "user", "content": text}]
        return messages if system is None else [{"role": "system", "content": system}, *messages]
    if form.template is None:
        text = f"User: {text}\n\nAssistant:"
    return text if system is None else f"{system}\n\n{text}"


def lists_options(question: str, options: Sequence[str]) -> bool:
    """Return whether a question holds its own options, each behind its letter."""
    text, place = " ".join(question.split()), 0
    for letter, option in zip(ascii_uppercase, options, strict=False):
        words = re.escape(" ".join(option.split()))
        match = re.compile(rf"(?<!\w)[(\[]?{letter}\s*[.):\]]\s*{words}").search(text, place)
        if match is None:
            return False
        place = match.end()
    return True


def form_asked_for(prompt: str | Sequence[Message]) -> str | None:
    """Return the form of an answer that a prompt asks for last; None: it asks for none.

    >>> form_asked_for("What is 3 + 4? End with `Answer: NUMBER`.")
    'Answer: %s'
    """
    text = prompt if isinstance(prompt, str) else "\n".join(each["content"] for each in prompt)
    ends = {
        match.end(): form for pattern, form in FORMS.items() for match in re.finditer(pattern, text)
    }
    last = max(ends, default=0)
    if last == len(text.rstrip()):  # the answer follows at once
        return "%s" if last else None
    return ends[last]


def guess_style(model: str, tokenizer: Any) -> Style:
    """Return the style that suits a model nobody wrote a form for, by its name (Hub id or path).

    A chat template alone is no sign: many base models ship one too (Qwen3-4B-Base). So "plain"
    means that there is no template, or that the last part of the name contains the word "base".
    """
    last_part = model.replace("\\", "/").rstrip("/").rpartition("/")[2]
    is_base = re.search(r"(?<![a-z])base(?![a-z])", last_part, re.IGNORECASE)
    return "chat" if getattr(tokenizer, "chat_template", None) and not is_base else "plain"


def prompt_text(
    prompt: str | Sequence[Message],
    tokenizer: Any,
    template_kwargs: Mapping[str, Any] | None = None,
) -> str:
    """Return a prompt as the model reads it.

    Raises:
        ValueError: The tokenizer has no chat template for messages, or it cannot be used.
    """
    if isinstance(prompt, str):
        return prompt
    from jinja2 import TemplateError

    options = {"add_generation_prompt": True, **(template_kwargs or {}), "tokenize": False}
    try:
        return str(tokenizer.apply_chat_template(prompt, **options))
    except (TemplateError, ValueError) as error:  # the template may be a stranger's, or missing
        reason = " ".join(str(error).split())
        raise ValueError(
            f"The chat template of {tokenizer.name_or_path} cannot be used: {reason[:200]}. Correct"
            " it, or set prompt_style: plain."
        ) from error


def token_ids(
    prompt: str | Sequence[Message],
    tokenizer: Any,
    template_kwargs: Mapping[str, Any] | None = None,
) -> list[int]:
    """Return the tokens of a prompt, as a training has them: in a chat those that the template
    writes alone.

    Raises:
        ValueError: As `prompt_text`.
    """
    text = prompt_text(prompt, tokenizer, template_kwargs)
    is_text = isinstance(prompt, str)
    return list(tokenizer(text, add_special_tokens=is_text)["input_ids"])


def save_form(folder: str | Path, form: PromptForm | None) -> None:
    """Write the form into a model's folder. None: it is not known, and the file of an earlier
    model goes."""
    path = Path(folder, FILE)
    if form is None:
        path.unlink(missing_ok=True)
    else:
        text = json.dumps(asdict(form), ensure_ascii=False, indent=2, default=str)
        path.write_text(text + "\n", encoding="utf-8")


def load_form(model: str, revision: str | None = None) -> PromptForm | None:
    """Return the form that a model (a folder, a Hub id, an embedded one) was trained on.

    None: nobody wrote it down, or its repository cannot be reached.

    Raises:
        ValueError: The file is damaged.
    """
    path = _find_file(find_model(model), revision)
    if path is None:
        return None
    try:
        return PromptForm(**json.loads(path.read_text(encoding="utf-8")))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {error}. Correct it, or delete it.") from error


def _find_file(model: str, revision: str | None) -> Path | None:
    if Path(model).is_dir():
        path = Path(model, FILE)
        return path if path.is_file() else None
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(model, FILE, revision=revision))
    except (OSError, ValueError):  # no such file or repository, no network, no name of one
        return None
