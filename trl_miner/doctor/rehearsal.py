"""What the training makes before it needs the model's weights, made the same way, with a small model in its place.

It is no list of rules: the training's own configuration, reward functions, data set and trainer say what is wrong.
"""

import tempfile
import warnings
from collections.abc import Generator, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from ..data.base_model import find_model
from ..data.reasoning_gym import is_task
from ..data.worlds import WORLDS
from ..recipe import load_reward_funcs
from .context import Context, Finding, failed, listening, not_checked, ok, parse, said, warning
from .memory import find_config

ROWS = 200  # of the data set are looked at
_TINY = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
_TINY |= {"num_key_value_heads": 2, "head_dim": 4, "layer_types": None, "max_window_layers": 1}


def check_trainer(context: Context) -> Iterator[Finding]:
    """Load the data and build the trainer as the training does, with a small model of the same kind."""
    (args, config, model_args, mixture), _ = parse(context.settings, context.processes)
    data = yield from _load_data(context, args, config, mixture, model_args)
    if data is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "model")
        try:
            _write_stand_in(context, model)
        except Exception as error:  # a tokenizer may be damaged in any way
            yield failed(f"the tokenizer must be readable: got {said(error)}. Download the model again.")
            return
        model_args.model_name_or_path, model_args.model_revision = str(model), "main"
        _take_out_of_the_way(config, model_args, Path(folder, "run"))
        try:
            trainer = _build(args, config, model_args, load_reward_funcs(args, config), data)
        except Exception as error:  # of TRL, transformers, PEFT
            is_unknown = isinstance(error, ImportError) and not context.machine.is_here
            yield (not_checked if is_unknown else failed)(said(error))
            return
        yield ok("the settings fit together: it can be built.")
        yield (warning if trainer.verifier.is_guess else ok)(trainer.verifier.reason, "rewards")
        yield _check_prompts(context, list(islice(data[args.dataset_train_split], ROWS)), model)
        yield from _check_golds(args, data)


def _load_data(
    context: Context, args: Any, config: Any, mixture: Any, model_args: Any
) -> Generator[Finding, None, Any]:
    """Return the data set by split, of one on the Hub the first rows; None if it cannot be read."""
    from ..training_data import hold_out, load_data

    name = args.dataset_name
    if mixture.datasets:
        yield not_checked("only the training reads a mixture of data sets.", "data")
        return None
    is_elsewhere = bool(name) and name not in WORLDS and not is_task(name) and not Path(name).exists()
    try:
        with listening():
            if is_elsewhere and not args.dataset_streaming:
                streamed = replace(args, dataset_streaming=True, held_out=0)
                number = max(ROWS, 2 * config.generation_batch_size)
                data = _first_rows(load_data(streamed, mixture, model_args), args, number)
                data = hold_out(data, replace(args, held_out=args.held_out_benchmark or min(args.held_out_size, 0.5)))
            else:
                data = load_data(args, mixture, model_args)
    except Exception as error:  # of whatever reads it
        is_unknown = is_elsewhere and not context.machine.is_here
        yield (not_checked if is_unknown else failed)(said(error), "data")
        return None
    yield ok(f"{name} can be read.", "data")
    return data


def _first_rows(data: Any, args: Any, number: int) -> dict[str, Any]:
    from datasets import Dataset

    splits = [split for split in (args.dataset_train_split, args.dataset_test_split) if split in data]
    return {split: Dataset.from_list(list(islice(data[split], number))) for split in splits}


def _build(args: Any, config: Any, model_args: Any, functions: list[Any], data: Any) -> Any:
    """Return the trainer, once it has an optimizer."""
    from ..train import build

    with listening():
        trainer, _ = build(args, config, model_args, functions, data)
        trainer.create_optimizer_and_scheduler(1)
    return trainer


def _take_out_of_the_way(config: Any, model_args: Any, output: Path) -> None:
    """Change what would look at a GPU, write, or need a package or a server. Other checks look at these settings."""
    config.output_dir, config.push_to_hub, config.use_vllm, config.report_to = str(output), False, False, []
    config.vllm_importance_sampling_correction = False
    config.fp16, config.bf16, config.mixed_precision = False, False, "no"
    if model_args.use_peft:
        model_args.load_in_4bit = model_args.load_in_8bit = False
    config.logging_dir = None
    if not str(getattr(config.optim, "value", config.optim)).startswith("adamw_torch"):
        config.optim = "adamw_torch"


def _write_stand_in(context: Context, folder: Path) -> None:
    """Write a model of the recipe's kind, with its vocabulary, its tokenizer and one small layer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    settings = context.settings
    name, code = find_model(str(settings.model_name_or_path)), bool(settings.trust_remote_code)
    config = find_config(settings)
    AutoModelForCausalLM.from_config(type(config)(**{**config.to_dict(), **_TINY})).save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(name, revision=settings.model_revision, trust_remote_code=code)
    tokenizer.save_pretrained(folder)


def _check_prompts(context: Context, rows: list[dict[str, Any]], model: Path) -> Finding:
    """Check the first prompts: messages against the chat template, and the longest against the server's limit."""
    from transformers import AutoTokenizer

    from ..data.prompts import prompt_text

    settings, tokenizer = context.settings, AutoTokenizer.from_pretrained(model)
    kwargs = settings.chat_template_kwargs or {}
    try:
        texts = [prompt_text(row["prompt"], tokenizer, **kwargs) for row in rows]
    except Exception as error:  # of a chat template, which may be missing
        return failed(said(error), "prompts")
    longest = max(len(tokenizer(text)["input_ids"]) for text in texts)
    text = f"at most {longest} tokens in the first {len(rows)} rows"
    if not (settings.use_vllm and settings.vllm_max_model_length) or longest <= context.longest_prompt:
        return ok(f"{text}.", "prompts")
    return failed(
        f"prompt and completion must fit into vllm_max_model_length={settings.vllm_max_model_length}: got {text} and "
        f"max_completion_length={settings.max_completion_length}. Raise the former, or make the data set with "
        f"--max-prompt-tokens.",
        "prompts",
    )


def _check_golds(args: Any, data: Any) -> Iterator[Finding]:
    """Check that the reward functions with a known form of answer accept the first golds as answers."""
    from ..training_data import check_golds

    with warnings.catch_warnings(record=True, action="always", category=UserWarning) as rejected:
        try:
            check_golds(args, data)
        except ValueError as error:
            yield failed(str(error), "verifier")
            return
    yield from (warning(str(one.message), "verifier") for one in rejected)
    if not rejected:
        yield ok("the first golds are accepted as answers.", "verifier")
