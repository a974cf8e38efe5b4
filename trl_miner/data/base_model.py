"""The base model of the embedded world: where its weights are, and the training that made them.

The weights are part of the package: on another processor sums are rounded differently, and the same
training gives another model. After a change of the world or of the training, make them anew, on a
CPU in a minute:

    python -c "from trl_miner.data import arithmetic, base_model as b; b.train(arithmetic, b.FOLDER)"
"""

import random
import tempfile
from pathlib import Path
from typing import Any

from . import arithmetic

FOLDER = Path(__file__).parent / "base_models" / "arithmetic"


def find_model(name: str) -> str:
    """Return what `from_pretrained` takes: the name itself or, for the embedded world, the folder
    of its base model."""
    return str(FOLDER) if name == arithmetic.MODEL else name


def train(
    world: Any,
    folder: Path,
    *,
    levels: tuple[int, ...] = arithmetic.LEVELS,
    rows: int = 12_000,
    steps: int = 900,
    step_error: float = 0.5,
    seed: int = 0,
) -> None:
    """Train a base model on a world's noisy solutions with TRL's SFTTrainer, and save it.

    Equal settings give equal weights on the same machine.

    Args:
        world: A module with `draw`, `solution` and `build_tokenizer`, as `arithmetic`.
        folder: Where model and tokenizer are written.
        levels: Of the problems that it learns from, in turn.
        rows: Noisy solutions; passed over several times.
        steps: Optimizer steps of 64 rows.
        step_error: Share of wrong results among the steps that may go wrong.
        seed: Of the solutions, the weights and their order.
    """
    import torch
    from datasets import Dataset
    from transformers import set_seed
    from trl import SFTConfig, SFTTrainer

    set_seed(seed)
    # the order of sums, hence the weights, then does not depend on the number of cores
    torch.set_num_threads(1)
    tokenizer = world.build_tokenizer()
    model = new_model(tokenizer)
    with tempfile.TemporaryDirectory() as scratch:
        args = SFTConfig(
            output_dir=scratch,
            max_steps=steps,
            per_device_train_batch_size=64,
            learning_rate=4e-3,
            lr_scheduler_type="cosine",
            warmup_steps=0.05,
            adam_beta2=0.98,
            seed=seed,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
        )
        examples = Dataset.from_list(noisy_solutions(world, levels, rows, step_error, seed))
        SFTTrainer(model, args, train_dataset=examples, processing_class=tokenizer).train()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def noisy_solutions(
    world: Any, levels: tuple[int, ...], rows: int, step_error: float, seed: int
) -> list[dict[str, str]]:
    """Return prompts of the train split with solutions of which some steps are wrong."""
    rng = random.Random(seed)
    examples = []
    for index in range(rows):
        problem = world.draw("train", levels[index % len(levels)], rng)
        completion = world.solution(problem, rng, step_error)
        examples.append({"prompt": problem.prompt, "completion": completion})
    return examples


def new_model(tokenizer: Any, hidden_size: int = 64, num_heads: int = 4) -> Any:
    """Return an untrained model of 0.15 M parameters (Qwen3 with two layers)."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=4 * hidden_size,
        num_hidden_layers=2,
        num_attention_heads=num_heads,
        num_key_value_heads=num_heads,
        head_dim=hidden_size // num_heads,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=0.08,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen3ForCausalLM(config)
    # Numbers start out as "so many tens, so many ones": from unrelated vectors the sums take far
    # longer to learn.
    tens, ones = torch.randn(2, 10, hidden_size) * 0.1
    vocabulary = tokenizer.get_vocab()
    with torch.no_grad():
        for number in range(arithmetic.MAX_TOTAL + 1):
            if str(number) in vocabulary:
                token = vocabulary[str(number)]
                model.get_input_embeddings().weight[token] = tens[number // 10] + ones[number % 10]
    return model
