"""A model's own generation settings, which training samples do not have: they would change the
distribution whose log-probs are in the loss."""

import logging
from typing import Any

from transformers import GenerationConfig

logger = logging.getLogger(__name__)

# Settings that change what is sampled, with the values at which they do not; TRL states
# temperature, top_p, top_k and repetition_penalty itself.
NEUTRAL: dict[str, Any] = {
    "begin_suppress_tokens": [],
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "min_length": 0,
    "min_new_tokens": 0,
    "min_p": 0.0,
    "no_repeat_ngram_size": 0,
    "num_beams": 1,
    "suppress_tokens": [],
    "typical_p": 1.0,
}
# The same without such a value.
WITHOUT_NEUTRAL = """
    bad_words_ids exponential_decay_length_penalty forced_bos_token_id forced_eos_token_id
    guidance_scale sequence_bias stop_strings watermarking_config
    """.split()


def neutralize(generation: GenerationConfig, of_model: GenerationConfig | None) -> None:
    """State in a training's generation settings, where it leaves them open, that samples have none
    of the model's own, with a warning.

    Args:
        generation: The training's. transformers takes what is None in it from the model's.
        of_model: The model's; None: it has none.

    Raises:
        ValueError: The model's has one that no other value undoes.
    """
    own = {
        name: value
        for name in (*NEUTRAL, *WITHOUT_NEUTRAL)
        if (value := getattr(of_model, name, None)) not in (None, NEUTRAL.get(name))
        and getattr(generation, name, None) is None
    }
    if stays := [name for name in own if name not in NEUTRAL]:
        raise ValueError(
            f"The model's generation_config has {', '.join(stays)}, which would change the samples"
            " of the training, and no value undoes that. Set"
            f" {' and '.join(f'model.generation_config.{name} = None' for name in stays)}."
        )
    if own:
        shown = ", ".join(f"{name}={value!r}" for name, value in own.items())
        logger.warning(
            f"The model's generation_config has {shown}: training samples are drawn without."
            " To have them, set generation_kwargs."
        )
        for name in own:
            setattr(generation, name, NEUTRAL[name])
