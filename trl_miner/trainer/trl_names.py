"""TRL's synchronous trainer, and transformers' below it: every private member and every module that
this folder uses, and what for.

Written for TRL 1.14.2 to 1.16. Where a name is elsewhere, or gone, the import of this folder ends
with one error that says which.
"""

from typing import Any

import trl

from .trl_asynchronous import has_member

# Methods that are overridden, with their parameters where every version has the same.
OVERRIDDEN = {
    "_generate_and_score_completions(self, inputs)": "gives a batch its advantages",
    "_generate(self, prompts)": "rollouts are counted, and sampling in rounds has made them before",
    "_calculate_rewards(self, inputs, prompts, completions, completion_ids_list)": (
        "rewards decide the kinds of prompts"
    ),
    "_generate_single_turn": (
        "seeded held-out samples, of vLLM where the training has it; 16-bit weights are cast once;"
        " rollouts on a CPU share forwards"
    ),
    "_tool_call_loop(self, prompts, prompt_ids, completion_ids, completions, logprobs, images,"
    " multimodal_fields)": "processes that generate together make as many turns",
    "_compute_loss(self, model, inputs)": "micro-batches by length; policy losses",
    "_get_per_token_logps_and_entropies": (
        "scores rows by length, finds statistics of logits on the way, and hands a loss's log-probs"
        " to the policy loss"
    ),
    "_save_checkpoint(self, model, trial)": "a checkpoint keeps the state of the parts",
    "_get_grad_norm(self, model, grad_norm)": "a gradient that is not finite reaches no weight",
}
# Those that are called, read or written.
READ = {
    "_step": "the micro-step; a checkpoint inside a generation cycle restores it",
    "_buffered_inputs": "the generation batch, which such a checkpoint keeps",
    "_metrics": "metrics of the training, of which TRL logs the mean",
    "_logs": "the table of completions shows the loss's advantages; rewards that a user changes",
    "_get_output_dir": "where a checkpoint is",
    "_pending_extra_logs": (
        "columns of reward functions, of rounds that dynamic sampling does not keep"
    ),
    "_entropy_bonus_enabled": (
        "the gradient of the policy loss alone; micro-batches stay TRL's with a bonus"
    ),
    "_load_best_model": "a checkpoint that has done all steps",
}


def moved(what: str) -> ImportError:
    """Return the error for a TRL that has something else than is listed here."""
    return ImportError(
        f"MinerGRPOTrainer is written for TRL 1.14.2 to 1.16: TRL {trl.__version__} has {what}."
        " Install trl>=1.14.2,!=1.15.0,<1.17."
    )


def check(trainer: Any) -> None:
    """Raise ImportError if TRL's trainer lacks something that is listed here."""
    if lost := [member for member in (*OVERRIDDEN, *READ) if not has_member(trainer, member)]:
        raise moved(f"a {trainer.__name__} without {'; '.join(lost)}")


try:
    from transformers.trainer_utils import get_last_checkpoint as get_last_checkpoint
    from trl import GRPOConfig as GRPOConfig
    from trl import GRPOTrainer as GRPOTrainer
    from trl.generation import vllm_generation as vllm_generation  # a quantized model's weights
    from trl.models.utils import disable_gradient_checkpointing as disable_gradient_checkpointing
    from trl.trainer import grpo_trainer as grpo_trainer  # where the class of that link is named
    from trl.trainer.utils import RepeatSampler as RepeatSampler
    from trl.trainer.utils import split_pixel_values_by_grid as split_pixel_values_by_grid
    from trl.trainer.utils import unsplit_pixel_values_by_grid as unsplit_pixel_values_by_grid
except ImportError as error:
    raise moved(f"other modules ({error})") from error
check(GRPOTrainer)
