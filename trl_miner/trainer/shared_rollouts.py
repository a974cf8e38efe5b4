"""Rollouts on a CPU, where those of a prompt read it once and share forwards while they are alike."""

from typing import Any

import torch
from torch.nn import Dropout
from transformers import GenerationMixin

from .sampler_check import draws_from_policy
from .trl_names import GRPOTrainer, disable_gradient_checkpointing


class SharedRollouts(GRPOTrainer):
    """TRL's trainer, with rollouts by `share` where `can_share` allows it: from the distribution that
    TRL's call of `generate` draws from, with other random numbers.

    A class behind `MinerGRPOTrainer`, which calls it for what TRL generates.
    """

    can_share: Any  # `evaluation.seeded_sampling.can_share`
    share: Any  # and `sample_shared`

    @torch.no_grad()
    def _generate_single_turn(self, prompt_ids: Any, *args: Any, **kwargs: Any) -> Any:
        if self.use_vllm or not self._may_share(self.model):
            return super()._generate_single_turn(prompt_ids, *args, **kwargs)
        seeds = torch.randint(2**62, (len(prompt_ids),)).tolist()
        checkpointing = self.args.gradient_checkpointing_kwargs
        with disable_gradient_checkpointing(self.model, checkpointing):
            given = self.model, prompt_ids, seeds, self.generation_config
            return self.share(*given, self.temperature, top_p=1.0), None

    def _may_share(self, model: Any) -> Any:
        """Return whether rollouts are of the training, and TRL's `generate` would draw them from the
        policy, each by itself."""
        plain = getattr(model, "get_base_model", lambda: model)()
        has_dropout = getattr(model.config, "attention_dropout", 0) or any(
            isinstance(module, Dropout) and module.p for module in model.modules()
        )
        return (
            model.training
            and not (
                has_dropout or self.use_transformers_continuous_batching or self.is_fsdp_enabled
            )
            and type(plain).generate is GenerationMixin.generate
            and draws_from_policy(self.args)
            and self.can_share(model)
        )
