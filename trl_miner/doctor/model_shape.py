"""The sizes of a model, counted on a model without weights that is built from its configuration."""

import argparse
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..data.base_model import find_model
from ..errors import first_line

# From config.json of the Hub repositories, for machines that have neither the model nor a network:
# hidden size, layers, MLP, heads, whether the head is the embedding.
_QWEN3 = {"model_type": "qwen3", "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936}
_LLAMA = _QWEN3 | {"model_type": "llama", "vocab_size": 128256}
_SIZES: dict[str, tuple[dict[str, Any], int, int, int, int, bool]] = {
    "Qwen/Qwen3-0.6B-Base": (_QWEN3, 1024, 28, 3072, 16, True),
    "Qwen/Qwen3-1.7B-Base": (_QWEN3, 2048, 28, 6144, 16, True),
    "Qwen/Qwen3-4B-Base": (_QWEN3, 2560, 36, 9728, 32, True),
    "Qwen/Qwen3-8B-Base": (_QWEN3, 4096, 36, 12288, 32, False),
    "Qwen/Qwen3-14B-Base": (_QWEN3, 5120, 40, 17408, 40, False),
    "OctoThinker/OctoThinker-8B-Hybrid-Base": (_LLAMA, 4096, 32, 14336, 32, False),
    "meta-llama/Llama-3.1-8B-Instruct": (_LLAMA, 4096, 32, 14336, 32, False),
}
_FIELDS = ("hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads", "tie_word_embeddings")
KNOWN = {name: kind | dict(zip(_FIELDS, sizes, strict=True)) for name, (kind, *sizes) in _SIZES.items()}
# The bound of the activations covers these. Others have experts, states or towers.
DENSE = {"qwen3", "qwen2", "llama", "mistral"}


class UnknownModel(OSError):  # noqa: N818
    """The configuration of a model cannot be found."""


class UnusableModel(ValueError):
    """A model that the training could not load or adapt either."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder."""

    model_type: str
    hidden: int
    layers: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    parameters: int  # all of the base model
    adapter: int  # those of a LoRA adapter; 0 without one
    head: int  # those of the output projection
    linear: int  # those of linear layers other than the head, which quantization makes smaller
    source: str  # where the configuration was found

    @property
    def trainable(self) -> int:
        """The parameters with a gradient."""
        return self.adapter or self.parameters


def find_config(settings: argparse.Namespace) -> tuple[Any, str]:
    """Return the model's configuration, and where it was found.

    Raises:
        UnknownModel: It is not here, and the Hub cannot be asked.
        UnusableModel: It is nowhere: not in the folder that is named, or the Hub does not give it.
    """
    from huggingface_hub import constants
    from transformers import AutoConfig

    try:
        name = find_model(str(settings.model_name_or_path))
    except ValueError as error:
        raise UnusableModel(str(error)) from error
    try:
        code = bool(settings.trust_remote_code)
        config = AutoConfig.from_pretrained(name, revision=settings.model_revision, trust_remote_code=code)
        return config, "its configuration"
    except Exception as error:  # a damaged file may raise anything
        is_asked = is_local(name) or not constants.HF_HUB_OFFLINE
        if name in KNOWN and not is_asked:
            fields = dict(KNOWN[name])
            return AutoConfig.for_model(fields.pop("model_type"), **fields), "a table of known models"
        if not is_asked:
            raise UnknownModel(
                f"the configuration of {name} is not here ({type(error).__name__}). Download the model, name its "
                f"folder, or run `trl-miner sft`, if the recipe says so"
            ) from error
        raise UnusableModel(
            f"model_name_or_path must be a model's folder or a Hub id that you may read: got {name}, revision "
            f"{settings.model_revision} ({first_line(error)}). Check both, run `hf auth login`, or run `trl-miner "
            f"sft`, if the recipe says so."
        ) from error


def is_local(name: str) -> bool:
    """Return whether a model is named by a path: no Hub id has such a form, or there is something of that name."""
    return Path(name).exists() or name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name


def measure(config: Any, settings: argparse.Namespace, source: str = "its configuration") -> Shape:
    """Count a model's parameters. Raises `UnusableModel` for an adapter that does not fit."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    head = model.get_output_embeddings().weight
    layers = (module for module in model.modules() if isinstance(module, torch.nn.Linear))
    text = config.get_text_config()
    heads = text.num_attention_heads
    return Shape(
        model_type=text.model_type,
        hidden=text.hidden_size,
        layers=text.num_hidden_layers,
        intermediate=getattr(text, "intermediate_size", 0) or 0,
        heads=heads,
        kv_heads=getattr(text, "num_key_value_heads", None) or heads,
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // heads,
        vocabulary=text.vocab_size,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        head=head.numel(),
        linear=sum(layer.weight.numel() for layer in layers if layer.weight is not head),
        adapter=_adapter_parameters(model, settings) if settings.use_peft else 0,  # last: it changes the model
        source=source,
    )


def _adapter_parameters(model: Any, settings: argparse.Namespace) -> int:
    """Count LoRA's parameters: rank times (inputs + outputs) of each linear layer, as PEFT chooses them."""
    from peft import LoraConfig, get_peft_model

    targets = settings.lora_target_modules
    if targets is not None and not isinstance(targets, str) and len(targets) == 1:
        targets = targets[0]
    lora = LoraConfig(r=settings.lora_r, target_modules=targets, task_type=settings.lora_task_type)
    try:
        with warnings.catch_warnings():  # PEFT itself uses a name that transformers has renamed
            warnings.simplefilter("ignore", FutureWarning)
            adapted = get_peft_model(model, lora, low_cpu_mem_usage=True)
    except ValueError as error:  # building the trainer says the same
        raise UnusableModel(str(error)) from error
    return sum(parameter.numel() for parameter in adapted.parameters() if parameter.requires_grad)
