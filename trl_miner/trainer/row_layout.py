"""Whether rows may be sorted by length into micro-batches of their own, or TRL's micro-batches must
stay: by the model, the loss, and the methods of TRL's trainer that somebody else overrides.
"""

import logging
from collections.abc import Collection
from typing import Any

from .core import Core
from .micro_batches import ROW_MEAN, SUMMED

logger = logging.getLogger(__name__)
# Where a micro-batch becomes a gradient. Who overrides one of these sees the micro-batches that TRL
# would hand to it.
LOSS_HOOKS = ("training_step", "_prepare_inputs", "compute_loss", "_compute_loss")
FORWARD = "_get_per_token_logps_and_entropies"
_PACKAGES = {"trl_miner", "trl", "transformers"}
# transformers' model types whose log-probs depend on the tokens of a row alone: softmax attention,
# rotary positions. tests/test_micro_batches.py looks at each.
ROW_WISE = set(
    """
    apertus arcee cohere cohere2 deepseek_v2 ernie4_5 ernie4_5_moe exaone4 gemma gemma2 gemma3_text
    glm glm4 glm4_moe gpt_neox gpt_oss granite granitemoe helium hunyuan_v1_dense llama ministral
    mistral mixtral nemotron olmo olmo2 olmo3 olmoe phi phi3 phimoe qwen2 qwen2_moe qwen3 qwen3_moe
    seed_oss smollm3 stablelm starcoder2
    """.split()
)


def can_sort_rows(trainer: Core) -> bool:
    """Return whether the trainer may sort rows by length, without needless padding; warn if it was
    to, and may not.

    It takes the trainer for its settings, its model, and the methods that somebody may have
    overridden.
    """
    if not trainer.args.compute_less:
        return False
    reason = _loss_problem(trainer) or _model_problem(trainer.model.config)
    if reason and trainer.is_world_process_zero():
        has_budget = trainer.args.max_tokens_per_micro_batch is not None
        names = "compute_less" + ", max_tokens_per_micro_batch" * has_budget
        logger.warning(f"{names}: micro-batches stay TRL's, because {reason}.")
    return not reason


def _loss_problem(trainer: Core) -> str | None:
    """Return why the gradient is no sum over rows, as far as one can see; None: it is."""
    if hooks := overridden(trainer, (*LOSS_HOOKS, FORWARD)):
        return f"{type(trainer).__name__} overrides {', '.join(hooks)}"
    if trainer.args.policy_loss_method.fixed_micro_batches:
        return str(trainer.args.policy_loss_method.fixed_micro_batches)
    if trainer.loss_type not in SUMMED | ROW_MEAN:
        return f"loss_type={trainer.loss_type} is not known here as a sum over rollouts"
    if trainer.args.pad_to_multiple_of:
        return "pad_to_multiple_of sets their lengths"
    if trainer.top_entropy_quantile < 1.0:
        return "top_entropy_quantile picks among the tokens of a micro-batch"
    if trainer._entropy_bonus_enabled:
        return "the entropy bonus is a mean over the tokens of a micro-batch"
    if trainer.aux_loss_enabled:
        return "the router's loss is a mean over the tokens of a micro-batch"
    return None


def _model_problem(config: Any) -> str | None:
    """Return why log-probs of a row may depend on padding or other rows; None: they do not."""
    if config.model_type not in ROW_WISE:
        return (
            f"model_type={config.model_type} is not known here to see nothing but the tokens of"
            " a row"
        )
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    of_layers = [kind for kind in rope.values() if isinstance(kind, dict)] or [rope]
    kinds = {str(kind.get("rope_type", kind.get("type", "default"))) for kind in of_layers}
    if kinds & {"dynamic", "longrope"}:
        return f"the {'/'.join(sorted(kinds))} RoPE of this model depends on the padded length"
    return None


def overridden(trainer: Core, names: Collection[str]) -> list[str]:
    """Return those of the methods that a trainer, or one of its classes that is not of these
    packages, defines."""
    classes = [
        cls for cls in type(trainer).__mro__ if cls.__module__.split(".")[0] not in _PACKAGES
    ]
    return [name for name in names if any(name in vars(place) for place in (trainer, *classes))]


def refuse_own_loss(trainer: Core, setting: str, hooks: Collection[str] = LOSS_HOOKS) -> None:
    """Refuse what computes TRL's loss by itself, where somebody changes that loss, by one of the
    `hooks`.

    Raises:
        ValueError: It is changed.
    """
    if names := overridden(trainer, hooks):
        raise ValueError(
            f"{setting} needs the loss that TRL computes from its own micro-batches: got"
            f" {type(trainer).__name__}, which overrides {', '.join(names)}. Leave {setting} or the"
            " override out."
        )
