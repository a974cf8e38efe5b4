"""What the training makes before it needs the model's weights, made the same way, with a small model in its place.

It is no list of rules: the training's own configuration, reward functions, data set and trainer say what is wrong.
"""

import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..recipe import load_reward_funcs
from ..reward_functions import required_columns
from .context import Context, Finding, failed, not_checked, ok
from .model_shape import DENSE, UnknownModel, UnusableModel, find_config, is_local, readable_model
from .parsing import listening, parse, said

ABOUT = "trainer"
_TINY = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
_TINY |= {"num_key_value_heads": 2, "head_dim": 4}


def check_trainer(context: Context) -> Iterator[Finding]:
    """Build the trainer as the training does, with a small model of the same kind."""
    (args, config, model_args, _), _ = parse(context.settings, max(context.plan.num_processes, 1))
    with tempfile.TemporaryDirectory() as folder:
        if model_args.model_name_or_path:
            try:
                is_own = _write_stand_in(context, Path(folder, "model"))
            except (UnknownModel, UnusableModel) as error:
                yield not_checked(f"{str(error).rstrip('.')}.")
                return
            except Exception as error:  # a tokenizer may be damaged in any way
                yield failed(f"the tokenizer must be readable: got {said(error)}. Download the model again.")
                return
            model_args.model_name_or_path = str(Path(folder, "model"))
            model_args.model_revision = "main"
            if not is_own and (args.tools or args.environment_factory):
                yield not_checked("tools, without the model's tokenizer, whose chat template must show them.")
                return
        _take_out_of_the_way(config, model_args, Path(folder, "run"))
        if not context.machine.is_here:  # whose packages are not known
            config.report_to = []
        try:
            from ..train import build

            functions = load_reward_funcs(args, config)
            with listening():
                trainer, _ = build(args, config, model_args, functions, _data(context, functions, model_args))
                trainer.create_optimizer_and_scheduler(1)
        except ImportError as error:
            yield (failed if context.machine.is_here else not_checked)(said(error))
        except Exception as error:  # of TRL, transformers, PEFT
            yield failed(said(error))
        else:
            yield ok("the settings fit together: it can be built.")


def _take_out_of_the_way(config: Any, model_args: Any, output: Path) -> None:
    """Leave out what would write, push, ask a server, or need a GPU. Other checks look at these."""
    config.output_dir, config.push_to_hub, config.use_vllm = str(output), False, False
    config.vllm_importance_sampling_correction = False
    config.fp16, config.bf16, config.mixed_precision = False, False, "no"
    if model_args.use_peft:
        model_args.load_in_4bit = model_args.load_in_8bit = False
    config.logging_dir = None
    if not str(getattr(config.optim, "value", config.optim)).startswith("adamw_torch"):
        config.optim = "adamw_torch"  # others may need a GPU, or packages that another check looks for


def _write_stand_in(context: Context, folder: Path) -> bool:
    """Write a model of the recipe's kind, with its vocabulary and one small layer; return whether it has its own
    tokenizer, or one in its place."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    settings = context.settings
    config, _ = find_config(settings)
    if config.model_type not in DENSE:
        raise UnknownModel(f"a trainer is built with a small {', '.join(sorted(DENSE))}: got a {config.model_type}")
    tiny = type(config)(**{**config.to_dict(), **_TINY, "layer_types": None, "max_window_layers": 1})
    AutoModelForCausalLM.from_config(tiny).save_pretrained(folder)
    name = readable_model(settings)
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


def _data(context: Context, functions: list[Any], model_args: Any) -> Any:
    """Return the data set if it is here, else one with the columns that the reward functions need.

    `model_args` name the small model, since prompts are built with a tokenizer, and the recipe's own may not be here.
    """
    from datasets import Dataset

    from ..data.reasoning_gym import is_task
    from ..data.worlds import WORLDS
    from ..train import load_data

    settings, (args, config, _, mixture) = context.settings, context.parsed
    is_none = not settings.dataset_name and not settings.datasets
    if is_none or (
        not settings.datasets
        and (settings.dataset_name in WORLDS or is_task(settings.dataset_name) or Path(settings.dataset_name).exists())
    ):
        return load_data(args, mixture, model_args)
    columns = {"prompt", *(column for function in functions for column in required_columns(function))}
    rows = Dataset.from_dict(dict.fromkeys(columns, ["?"] * 2 * math.ceil(config.generation_batch_size)))
    data = rows.to_iterable_dataset() if settings.dataset_streaming else rows
    return dict.fromkeys((args.dataset_train_split, args.dataset_test_split), data)
