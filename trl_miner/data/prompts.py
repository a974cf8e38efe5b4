r"""Every prompt of this project, the same for training and evaluation. Imports nothing heavy.

- "math": the paper's "Training and evaluation prompt". The paper prints `\\boxed{}` there; the
  second backslash is an artefact of escaping. No blank follows "Assistant:": tokenizers put the
  blank in front of the next word.
- "choice": the paper's sentence for medical questions, after the question and its options. How it
  frames them is not stated: options one per line, and "User: ... Assistant:" for base models, are
  our choice.
- "task": the question of reasoning-gym, and where the answer goes; both are our choice.
- "verbatim": the question is the prompt, as in the embedded arithmetic world, whose base model
knows no other text.

Two styles: "plain" text for base models, "chat" messages for those with a chat template.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from string import ascii_uppercase
from typing import Any, Literal, get_args

from ..common.errors import first_line

Kind = Literal["math", "choice", "task", "verbatim"]
Style = Literal["plain", "chat"]
Message = dict[str, str]

STYLES = get_args(Style)

MATH_INSTRUCTION = (
    "A conversation between User and Assistant. The user asks a question, and the Assistant solves"
    " it. The assistant first thinks about the reasoning process in the mind and then provides the"
    " user with the answer. The assistant thinks deeply and output the final answer within"
    " \\boxed{}."
)
CHOICE_INSTRUCTION = "Please reason step by step and output the final answer as `The answer is'"
TASK_INSTRUCTION = (
    "Reason step by step, and write the final answer, and nothing else, between <answer> and"
    " </answer>."
)
_REQUESTS = {"choice": CHOICE_INSTRUCTION, "task": TASK_INSTRUCTION}  # below the question


@dataclass(frozen=True)
class PromptForm:
    """All that turns a question into the tokens of a prompt, besides the tokenizer with its chat
    template.

    Attributes:
        style: Plain text or chat messages.
        system: A system prompt instead of the instruction of "math"; None: the kind of problem
            decides.
        template: A template with {question} in it instead of all other words; None: the kind of
            problem decides.
        template_kwargs: What the chat template gets besides the messages.
        is_known: False where the words around the questions of a data set's own prompts are not
            known.
    """

    style: Style = "plain"
    system: str | None = None
    template: str | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    is_known: bool = field(default=True, compare=False)

    def __post_init__(self) -> None:
        if self.template is not None and "{question}" not in self.template:
            raise ValueError(
                f"prompt_template must say where the question goes: got {self.template!r}. Write"
                " {question} there."
            )

    @property
    def is_own(self) -> bool:
        """Whether it says more than the style."""
        return self.system is not None or self.template is not None


def build_prompt(
    kind: Kind,
    question: str,
    options: Sequence[str] = (),
    context: str = "",
    *,
    form: PromptForm = PromptForm(),
) -> str | list[Message]:
    """Build the prompt of a problem: text for the style "plain", messages for "chat"."""
    text = f"{context}\n\n{question}" if context else question
    if kind == "choice":
        if not 2 <= len(options) <= 26:
            raise ValueError(
                f'A "choice" prompt needs 2 to 26 options, one letter each: got {len(options)}.'
                " Pass the option texts."
            )
        if not lists_options(question, options):
            lettered = map("{}. {}".format, ascii_uppercase, options)
            text = f"{text}\n\n" + "\n".join(lettered)
    system = form.system
    if form.template is not None:
        text = form.template.replace("{question}", text)
    elif kind in _REQUESTS:
        text = f"{text}\n\n{_REQUESTS[kind]}"
    elif kind == "math" and system is None:
        system = MATH_INSTRUCTION
    if form.style == "chat":
        messages = [{"role": "user", "content": text}]
        return messages if system is None else [{"role": "system", "content": system}, *messages]
    if form.template is None and kind != "verbatim":
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
    return bool(options)


def guess_style(model_name: str, tokenizer: Any) -> Style:
    """Return the style that suits a base model, by its tokenizer and its name (Hub id or path).

    A chat template alone is no sign: many base models ship one too (Qwen3-4B-Base). So "plain"
    means that there is no template, or that the last part of the name contains the word "base". For
    a trained model this is wrong as often as not: `prompt_form.style_of` asks the model's own
    folder first.
    """
    last_part = model_name.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]
    is_base = re.search(r"(?<![a-z])base(?![a-z])", last_part, re.IGNORECASE) is not None
    return "chat" if getattr(tokenizer, "chat_template", None) and not is_base else "plain"


def token_ids(
    prompt: str | Sequence[Message], tokenizer: Any, template_kwargs: Any = None
) -> list[int]:
    """Return the tokens of a prompt, as a training has them: in a chat those that the template
    writes alone."""
    if isinstance(prompt, str):
        return list(tokenizer(prompt)["input_ids"])
    options = {"add_generation_prompt": True, "return_dict": True, **(template_kwargs or {})}
    from jinja2 import TemplateError

    try:
        return list(tokenizer.apply_chat_template(prompt, **options)["input_ids"])
    except TemplateError as error:  # it may be a stranger's; transformers runs it in a sandbox
        raise ValueError(
            f"The chat template of {tokenizer.name_or_path} cannot be used ({first_line(error)})."
            " Correct it, or ask with --style plain (prompt_style: plain)."
        ) from error
