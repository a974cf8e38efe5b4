"""The base models of the embedded worlds: where their weights are, and the training that made them.

The weights are part of the package: on another processor sums are rounded differently, and the same
training gives another model. (Those of the study's world, 4 MB, are not: whoever repeats the study
makes them.) After a change of a world or of the training, make them anew, on a CPU in 1 to 8
minutes:

    python -m trl_miner.data.base_model trl_miner/arithmetic
"""

import argparse
import dataclasses
import random
import tempfile
from pathlib import Path
from typing import Any

from . import arithmetic
from .worlds import WORLDS


@dataclasses.dataclass(frozen=True)
class BaseModelSettings:
    """The settings of a base model. Equal settings give equal weights on the same machine."""

    world: str = arithmetic.NAME
    hidden_size: int = 64
    num_layers: int = 2
    num_heads: int = 4
    intermediate_size: int = 256
    rows: int = 12_000  # noisy solutions; passed over several times
    steps: int = 900  # optimizer steps
    batch_size: int = 64  # rows per step
    learning_rate: float = 4e-3
    step_error: float = 0.5  # share of wrong results among the steps that may go wrong
    seed: int = 0


def find_model(name: str) -> str:
    """Return what `from_pretrained` takes: the name itself or, for an embedded world, the folder of
    its base model."""
    if name not in WORLDS:
        return name
    folder = _folder_of(name)
    if not folder.is_dir():
        raise ValueError(
            f"{folder} has no weights. Make them, with: python -m trl_miner.data.base_model {name}"
        )
    return str(folder)


def _folder_of(world: str) -> Path:
    place = Path("base_models", world.rpartition("/")[2])
    shipped = Path(__file__).parent / place
    return shipped if shipped.is_dir() else Path(str(WORLDS[world].__file__)).parent / place


def settings_of(world: str) -> BaseModelSettings:
    """Return the settings of a world's base model."""
    return BaseModelSettings(world=world, **WORLDS[world].BASE_MODEL)


def train(settings: BaseModelSettings, folder: Path) -> None:
    """Train a base model on the CPU with TRL's SFTTrainer, and save it with its tokenizer."""
    import torch
    from datasets import Dataset
    from transformers import set_seed
    from trl import SFTConfig, SFTTrainer

    set_seed(settings.seed)
    # the order of sums, hence the weights, then does not depend on the number of cores
    torch.set_num_threads(1)
    tokenizer = WORLDS[settings.world].build_tokenizer()
    model = _new_model(settings, tokenizer)
    with tempfile.TemporaryDirectory() as scratch:
        trainer = SFTTrainer(
            model=model,
            processing_class=tokenizer,
            train_dataset=Dataset.from_list(_examples(settings)),
            args=SFTConfig(
                output_dir=scratch,
                max_steps=settings.steps,
                per_device_train_batch_size=settings.batch_size,
                learning_rate=settings.learning_rate,
                lr_scheduler_type="cosine",
                warmup_steps=0.05,
                adam_beta2=0.98,
                seed=settings.seed,
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                logging_strategy="no",
                save_strategy="no",
                report_to="none",
            ),
        )
        trainer.train()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _new_model(settings: BaseModelSettings, tokenizer: Any) -> Any:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=settings.hidden_size,
            intermediate_size=settings.intermediate_size,
            num_hidden_layers=settings.num_layers,
            num_attention_heads=settings.num_heads,
            num_key_value_heads=settings.num_heads,
            head_dim=settings.hidden_size // settings.num_heads,
            max_position_embeddings=256,
            tie_word_embeddings=True,
            initializer_range=0.08,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    # Numbers start out as "so many tens, so many ones": from unrelated vectors the sums take far
    # longer to learn.
    tens, ones = torch.randn(2, 10, settings.hidden_size) * 0.1
    vocabulary = tokenizer.get_vocab()
    with torch.no_grad():
        for number in range(arithmetic.MAX_TOTAL + 1):
            if str(number) in vocabulary:
                token = vocabulary[str(number)]
                model.get_input_embeddings().weight[token] = tens[number // 10] + ones[number % 10]
    return model


def _examples(settings: BaseModelSettings) -> list[dict[str, str]]:
    world, rng = WORLDS[settings.world], random.Random(settings.seed)
    examples = []
    for index in range(settings.rows):
        problem = world.draw(
            "train", world.PRETRAINED_LEVELS[index % len(world.PRETRAINED_LEVELS)], rng
        )
        examples.append(
            {
                "prompt": problem.prompt,
                "completion": world.solution(problem, rng, settings.step_error),
            }
        )
    return examples


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("world", choices=WORLDS, help="name of the embedded world")
    parser.add_argument(
        "--output", type=Path, help="folder to write (default: where the package keeps the weights)"
    )
    words = parser.parse_args()
    train(settings_of(words.world), words.output or _folder_of(words.world))
