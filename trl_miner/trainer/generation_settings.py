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


def neutralize(generation: GenerationConfig, of_model: GenerationConfig | None) -> None:
    """State in a training's generation settings, where it leaves them open, that samples have none
    of the model's own, with a warning.

    Args:
        generation: The training's. transformers takes what is None in it from the model's.
        of_model: The model's; None: it has none.
    """
    own = {
        name: value
        for name, neutral in NEUTRAL.items()
        if (value := getattr(of_model, name, None)) not in (None, neutral)
        and getattr(generation, name, None) is None
    }
    if own:
        logger.warning(
            f"Training samples are drawn without the {own} of the model's generation_config, which"
            " changes the distribution. To have them, set generation_kwargs."
        )
        generation.update(**{name: NEUTRAL[name] for name in own})
