"""Every private name of TRL, transformers and accelerate that this folder overrides or reads.

Tested with TRL 1.16. The import ends with one error where a name is gone, and warns where TRL is
another minor version.
"""

import inspect
import logging
from typing import Any

import trl
from trl import GRPOTrainer

logger = logging.getLogger(__name__)

TESTED = "1.16"
# Methods of TRL's trainer that ours overrides, with the parameters that TRL calls them with.
OVERRIDDEN = {
    "_generate_and_score_completions": "self, inputs",
    "_prepare_inputs": "self, generation_batch",
    "_compute_loss": "self, model, inputs",
    "_get_per_token_logps_and_entropies": "self, model, input_ids, attention_mask,"
    " logits_to_keep, batch_size, compute_entropy, compute_aux_loss",
}
# Attributes of TRL's trainer: the micro-step, the generation batch under way, what TRL has gathered
# for its table of completions, and the metrics of which it logs the mean.
READ = ("_step", "_buffered_inputs", "_logs", "_metrics")
# Of accelerate none. Of transformers: a parameter of the public `save_model`, and where a model
# keeps the name of its attention kernel.
OF_TRANSFORMERS = ("_internal_call", "_attn_implementation")


def missing_names(trainer: Any) -> list[str]:
    """Return those names that a class of trainers does not have as TRL 1.16 has them."""
    functions = [
        inspect.unwrap(value)
        for kind in trainer.__mro__
        for value in vars(kind).values()
        if inspect.isfunction(value)
    ]
    used = {name for function in functions for name in function.__code__.co_names}
    lost = [name for name in READ if name not in used]
    for name, parameters in OVERRIDDEN.items():
        found = inspect.signature(getattr(trainer, name, missing_names)).parameters
        if not ", ".join(found).startswith(parameters):
            lost.append(f"{name}({parameters})")
    return lost


def check(trainer: Any, version: str) -> None:
    """Check a class of TRL's trainers.

    Raises:
        ImportError: It lacks one of the names.
    """
    if lost := missing_names(trainer):
        raise ImportError(
            f"MinerGRPOTrainer is written for TRL {TESTED}: in TRL {version} {trainer.__name__} has"
            f" no {'; no '.join(lost)}. Install trl=={TESTED}.*."
        )
    if version.split(".")[:2] != TESTED.split("."):
        logger.warning(
            f"MinerGRPOTrainer was tested with TRL {TESTED}, and this is TRL {version}. All names"
            f" that it uses are there. If a training step fails, install trl=={TESTED}.*."
        )


check(GRPOTrainer, trl.__version__)
