"""A model's own generation settings, which samples do not have."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import GenerationConfig


@contextmanager
def neutral_settings(model: Any) -> Iterator[None]:
    """Empty the model's own generation settings for a while: `generate` takes from them whatever it
    is not given."""
    settings = vars(model.generation_config)
    before = dict(settings)
    settings.update(vars(GenerationConfig()))
    try:
        yield
    finally:
        settings.clear()
        settings.update(before)


# Of a model's generation settings, those that a training states itself, and those that choose no
# token.
_NOT_LEFT_OUT = re.compile(
    r"temperature|top_[kp]|repetition_penalty|do_sample|max_(new_tokens|length)|(pad|bos|eos)_token_id|"
    r"decoder_start_token_id|use_cache|cache_.*|output_.*|return_dict_in_generate|disable_compile|"
    r"transformers_version|_.*|.*assistant.*"
)

_NEUTRAL_AT_1 = re.compile(r"penalty|beam|typical_p|guidance_scale|num_return_sequences")


def left_out_settings(model: Any) -> dict[str, Any]:
    """Return the model's own generation settings that samples do not have: they would change the
    distribution of which the loss takes the log-probs."""
    settings = getattr(model, "generation_config", None)
    return {
        name: value
        for name, value in (settings.to_dict() if settings is not None else {}).items()
        if not _NOT_LEFT_OUT.fullmatch(name)
        and value not in (None, 0)
        and not (value == 1 and _NEUTRAL_AT_1.search(name))
    }
