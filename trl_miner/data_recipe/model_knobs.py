"""The settings of a made recipe that depend on the model: learning rate, lengths, thinking."""

import argparse
from collections.abc import Mapping
from typing import Any

from ..data.base_model import find_model
from ..data.prompt_form import style_of
from ..doctor.memory import count_parameters, find_config
from ..recipe.parsing import load_tokenizer
from ..trainer.config import MinerGRPOConfig

THINKING_TOKENS = 4096
_SWITCH, _THINKS = "enable_thinking", "<think>"  # in a chat template


def learning_rate(parameters: float, *, is_adapter: bool = False) -> float:
    """Return a learning rate that moves a model of so many parameters within a hundred steps.

    The recipes' rates, as a power of the size: 2e-4 for 1 M (recipes/study), 1e-5 for 135 M
    (recipes/SmolLM2-135M-Instruct), 2e-6 from 2 B on (the paper's); ten times as much for LoRA.
    """
    rate = min(2e-4, max(2e-6, 1e-5 * (135e6 / parameters) ** 0.6))
    return float(f"{rate * (10 if is_adapter else 1):.0e}")


def choose_knobs(recipe: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the settings that a recipe leaves open and its model decides, and a comment on each.

    Raises:
        OSError: The model is not here, and the Hub cannot be asked.
        ValueError: There is no such model, or it has no tokenizer.
    """
    model, revision = str(recipe["model_name_or_path"]), recipe.get("model_revision", "main")
    trusts = bool(recipe.get("trust_remote_code"))
    asked = {"model_name_or_path": model, "model_revision": revision, "trust_remote_code": trusts}
    config = find_config(argparse.Namespace(**asked))
    parameters = count_parameters(config, trusts=trusts)
    rate = learning_rate(parameters, is_adapter=bool(recipe.get("use_peft")))
    size = f"{parameters / 1e6:.3g} M" if parameters < 1e9 else f"{parameters / 1e9:.3g} B"
    knobs: dict[str, Any] = {"learning_rate": rate, "lr_scheduler_type": "constant"}
    comments = {
        "learning_rate": f"for {size} parameters; 1e-6 would teach a small model nothing",
        "lr_scheduler_type": "a rate that falls to 0 would halve what so few steps teach",
    }
    tokenizer = load_tokenizer(find_model(model), revision, trusts=trusts)
    tokens, why = _answer_tokens(recipe, model, tokenizer, knobs, comments)
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    if positions and tokens > positions // 2:
        tokens, why = positions // 2, f"half of the {positions} tokens that the model has room for"
    knobs["max_completion_length"] = tokens
    if why:
        comments["max_completion_length"] = why
    knobs["use_vllm"] = False
    knobs = {key: value for key, value in knobs.items() if key not in recipe}
    return knobs, {key: comment for key, comment in comments.items() if key in knobs}


def _answer_tokens(
    recipe: Mapping[str, Any],
    model: str,
    tokenizer: Any,
    knobs: dict[str, Any],
    comments: dict[str, str],
) -> tuple[int, str]:
    """Return how long an answer may be, and why; turn thinking off where the chat template can."""
    usual = int(MinerGRPOConfig.max_completion_length or 0)
    template = str(getattr(tokenizer, "chat_template", None) or "")
    given = recipe.get("prompt_style", "auto")
    style = style_of(model, tokenizer) if given == "auto" else given
    if style != "chat" or (_SWITCH not in template and _THINKS not in template):
        return usual, ""
    if _SWITCH in template and "chat_template_kwargs" not in recipe:
        knobs["chat_template_kwargs"] = {_SWITCH: False}
        comments["chat_template_kwargs"] = (
            f"no thinking, which {usual} tokens would cut off; true needs max_completion_length:"
            f" {THINKING_TOKENS}"
        )
        return usual, ""
    if _SWITCH in template and not _thinks(recipe["chat_template_kwargs"]):
        return usual, ""
    return THINKING_TOKENS, "tokens of an answer, for a model that thinks before it answers"


def _thinks(kwargs: Any) -> bool:
    text = str(kwargs).replace(" ", "").lower()
    return not any(f"{quote}{_SWITCH}{quote}:false" in text for quote in "\"'")
