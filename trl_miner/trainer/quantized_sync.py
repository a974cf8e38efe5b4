"""QLoRA with vLLM: vLLM gets the policy's weights in 16 bits or more, and the training keeps its
own.

TRL merges the adapter into the quantized weights, which rounds them anew, sends them without what
they mean, and unmerges, which rounds once more: vLLM refuses them or samples from another policy,
and the base model drifts (https://github.com/huggingface/trl/issues/4973).
"""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from torch import Tensor

from .rules import vllm_gets_quantized_weights
from .trl_names import vllm_generation


class FullWeights(vllm_generation.VLLMGeneration):
    """TRL's link to vLLM; of a quantized model it sends full weights."""

    def _init_vllm(self) -> None:
        if not _is_quantized(self.model):
            return super()._init_vllm()
        adapters = getattr(self.model, "peft_config", {}).values()
        vllm_gets_quantized_weights(
            bits=4 if getattr(self.model, "is_loaded_in_4bit", False) else 8,
            is_sharded=self._dist.is_fsdp or self._dist.is_zero3,
            has_dora=any(getattr(adapter, "use_dora", False) for adapter in adapters),
        )
        # false: else vLLM's are quantized, too
        with patch.object(vllm_generation, "is_bitsandbytes_available", bool):
            return super()._init_vllm()

    def _iter_named_params(self) -> Iterator[tuple[str, Tensor]]:
        return _full_weights(self) if _is_quantized(self.model) else super()._iter_named_params()


def _is_quantized(model: Any) -> bool:
    return bool(
        getattr(model, "is_loaded_in_4bit", False) or getattr(model, "is_loaded_in_8bit", False)
    )


def _full_weights(generation: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the policy's weights with vLLM's names, one at a time: dequantized, and with the
    adapter's added."""
    from peft.utils.integrations import dequantize_module_weight

    model = generation.model
    for name, parameter in model.named_parameters():
        path, _, leaf = name.rpartition(".")
        # the adapter's; a layer that has a trained copy
        if model.prefix in name or "original_module" in name:
            continue
        module = model.get_submodule(path)
        weight = dequantize_module_weight(module).data if leaf == "weight" else parameter.data
        if path.endswith(".base_layer") and leaf == "weight":
            lora = model.get_submodule(path.removesuffix(".base_layer"))
            for adapter in lora.active_adapters:
                weight = weight + lora.get_delta_weight(adapter).to(weight)
        short = name.removeprefix("base_model.model.").replace(".base_layer", "")
        yield (
            generation._fix_param_name_to_vllm(short, extra_prefixes=["modules_to_save.default."]),
            weight,
        )
