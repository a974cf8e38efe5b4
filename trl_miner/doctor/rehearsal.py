"""What the training makes before it needs the model's weights, made the same way, with a small model in its place.

It is no list of rules: the training's own configuration, reward functions, data set and trainer say what is wrong.
"""

import tempfile
from collections.abc import Generator, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from ..data.base_model import find_model
from ..data.own import GRADERS, check_first_golds
from ..data.reasoning_gym import is_task
from ..data.worlds import WORLDS
from ..recipe import load_reward_funcs, reward_names
from ..reward_functions import required_columns
from .context import Context, Finding, failed, listening, not_checked, ok, parse, said, warning
from .memory import DENSE, find_config, is_local

ROWS = 200  # of the data set are looked at
_TINY = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
_TINY |= {"num_key_value_heads": 2, "head_dim": 4}


def check_trainer(context: Context) -> Iterator[Finding]:
    """Load the data and build the trainer as the training does, with a small model of the same kind."""
    if context.shape.model_type not in DENSE:
        yield not_checked(f"it is built with a small {', '.join(sorted(DENSE))}: got a {context.shape.model_type}.")
        return
    (args, config, model_args, mixture), _ = parse(context.settings, context.processes)
    with tempfile.TemporaryDirectory() as folder:
        try:
            has_tokenizer = _write_stand_in(context, Path(folder, "model"))
        except Exception as error:  # a tokenizer may be damaged in any way
            yield failed(f"the tokenizer must be readable: got {said(error)}. Download the model again.")
            return
        model_args.model_name_or_path, model_args.model_revision = str(Path(folder, "model")), "main"
        if not has_tokenizer and (args.tools or args.environment_factory):
            yield not_checked("tools, without the model's tokenizer, whose chat template must show them.")
            return
        _take_out_of_the_way(config, model_args, Path(folder, "run"))
        functions = load_reward_funcs(args, config)
        data = yield from _load_data(context, args, config, mixture, model_args)
        try:
            trainer = _build(args, config, model_args, functions, data or _made_up_data(args, config, functions))
        except Exception as error:  # of TRL, transformers, PEFT
            is_unknown = isinstance(error, ImportError) and not context.machine.is_here
            yield (not_checked if is_unknown else failed)(said(error))
            return
        yield ok("the settings fit together: it can be built.")
        yield (warning if trainer.verifier.is_guess else ok)(trainer.verifier.reason, "rewards")
        if data:
            rows = list(islice(data[args.dataset_train_split], ROWS))
            if has_tokenizer:
                yield _check_prompts(context, rows, model_args.model_name_or_path)
            yield from _check_golds(args, rows)


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
                data = hold_out(data, replace(args, held_out=min(args.held_out, 0.5)))
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


def _made_up_data(args: Any, config: Any, functions: list[Any]) -> dict[str, Any]:
    """Return rows with the columns that the reward functions need, in the place of data that are not here."""
    from datasets import Dataset

    columns = {"prompt", *(column for function in functions for column in required_columns(function))}
    rows = Dataset.from_dict(dict.fromkeys(columns, ["?"] * 2 * int(config.generation_batch_size)))
    data = rows.to_iterable_dataset() if args.dataset_streaming else rows
    return dict.fromkeys((args.dataset_train_split, args.dataset_test_split), data)


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


def _write_stand_in(context: Context, folder: Path) -> bool:
    """Write a model of the recipe's kind, with its vocabulary and one small layer.

    Return whether it has the recipe's tokenizer, rather than one in its place.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    settings = context.settings
    config = find_config(settings)
    tiny = type(config)(**{**config.to_dict(), **_TINY, "layer_types": None, "max_window_layers": 1})
    AutoModelForCausalLM.from_config(tiny).save_pretrained(folder)
    name = find_model(str(settings.model_name_or_path))
    try:
        code = bool(settings.trust_remote_code)
        tokenizer = AutoTokenizer.from_pretrained(name, revision=settings.model_revision, trust_remote_code=code)
    except Exception:
        if is_local(name):
            raise
        _any_tokenizer().save_pretrained(folder)  # the recipe's own is on the Hub, which is not asked
        return False
    tokenizer.save_pretrained(folder)
    return True


def _any_tokenizer() -> Any:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1}, unk_token="<pad>"))
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")


def _check_prompts(context: Context, rows: list[dict[str, Any]], model: str) -> Finding:
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


def _check_golds(args: Any, rows: list[dict[str, Any]]) -> Iterator[Finding]:
    """Check that the reward functions with a known form of answer accept the first golds as answers."""
    names = reward_names(args)
    for name in [name for name in names if name in GRADERS]:
        try:
            rejected = check_first_golds(name, rows, names)
        except ValueError as error:
            yield failed(str(error), "verifier")
        else:
            yield warning(rejected, "verifier") if rejected else ok(f"{name} accepts the first golds.", "verifier")
