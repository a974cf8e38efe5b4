"""A model is asked in the form of prompt that it was trained in: the same tokens in the training and in `eval`."""

import json
import random
from pathlib import Path

import pytest
from datasets import Dataset, IterableDataset
from harness import config
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from trl_miner import MinerGRPOTrainer, cli
from trl_miner.data.prompts import MATH_INSTRUCTION
from trl_miner.evaluation.backends import TransformersBackend
from trl_miner.hub.folder import assemble, copy
from trl_miner.runs.models import find_model
from trl_miner.train import main

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<|assistant|>"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{% endif %}"
)
PROBLEMS = [{"problem": f"What is {n} + {n * n}?", "answer": str(n + n * n)} for n in range(2, 14)]


def build_base(folder: Path, *, begin: bool = False) -> str:
    """Save a model whose tokens are bytes and which ships a chat template, as Qwen3-4B-Base does."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: place for place, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>"])
    if begin:
        tokenizer.post_processor = processors.TemplateProcessing(
            "<s> $A", None, [("<s>", tokenizer.token_to_id("<s>"))]
        )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>")
    fast.chat_template = TEMPLATE
    size = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1, head_dim=16)
    settings = Qwen3Config(vocab_size=len(fast), num_key_value_heads=1, max_position_embeddings=1024, **size)
    Qwen3ForCausalLM(settings).save_pretrained(folder)
    fast.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return build_base(tmp_path_factory.mktemp("models") / "Qwen3-4B-Base")


@pytest.fixture
def trained_on(monkeypatch):
    """The prompts, in tokens, that trainings generate for."""
    seen, generate = [], MinerGRPOTrainer._generate_single_turn

    def spy(self, prompt_ids, *args, **kwargs):
        seen.extend(map(tuple, prompt_ids))
        return generate(self, prompt_ids, *args, **kwargs)

    monkeypatch.setattr(MinerGRPOTrainer, "_generate_single_turn", spy)
    return seen


@pytest.fixture
def asked_for(monkeypatch, tmp_path):
    """Run `eval` on the problems of the training, and return the prompts, in tokens, that the backend got."""
    seen, sample = [], TransformersBackend.sample

    def spy(self, requests, *args):
        seen.extend(request.ids for request in requests)
        return sample(self, requests, *args)

    monkeypatch.setattr(TransformersBackend, "sample", spy)

    def ask(model, *options):
        seen.clear()
        assert cli.main([*eval_command(tmp_path, model), "--backend", "transformers", *options]) == 0
        return {*seen}

    return ask


def eval_command(folder, model):
    count = len(list(folder.glob("eval-*")))
    own = ["--benchmarks", f"own={write(folder, PROBLEMS)}", "--output", str(folder / f"eval-{count}")]
    return ["eval", "--model", str(model), *own, "--samples", "1", "--max-tokens", "1"]


def write(folder: Path, rows) -> str:
    path = folder / "problems.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def any_reward(completions, **kwargs):
    return [float(place % 2) for place in range(len(completions))]


def train_by_recipe(folder, model, *options):
    """Train one step on the problems; twelve prompts of two rollouts."""
    settings = dict(
        model_name_or_path=model,
        dataset_name=write(folder, PROBLEMS),
        dataset_prompt_column="problem",
        dataset_solution_column="answer",
        output_dir=folder / "runs" / "Qwen3-4B-Base" / "miner",
        max_steps=1,
        num_generations=2,
        per_device_train_batch_size=24,
        max_completion_length=2,
        save_steps=1,
        report_to="none",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
    )
    main([word for name, value in settings.items() for word in (f"--{name}", str(value))] + list(options))
    return settings["output_dir"]


def train_in_python(folder, model, rows, cls=Dataset, **settings):
    rows = Dataset.from_list(rows)
    shape = dict(max_steps=1, num_generations=2, per_device_train_batch_size=24, max_completion_length=2)
    args = config(folder / "own", **{**shape, **settings})
    data = rows if cls is Dataset else rows.to_iterable_dataset()
    trainer = MinerGRPOTrainer(model, any_reward, args, train_dataset=data)
    trainer.train()
    trainer.save_model()
    return folder / "own"


def own_prompt(style, system, words, problem):
    text = words.replace("{question}", problem)
    if style == "plain":
        return text
    messages = [{"role": "user", "content": text}]
    return messages if system is None else [{"role": "system", "content": system}, *messages]


@pytest.mark.parametrize("seed", range(14))
def test_a_model_is_asked_for_the_tokens_that_it_was_trained_on(base, tmp_path, trained_on, asked_for, seed):
    """A random form: style, settings of the chat template, system prompt, template; of a recipe or of the data."""
    draw = random.Random(seed)
    style, by_recipe = draw.choice(["plain", "chat"]), draw.random() < 0.5
    system = draw.choice([None, "Be brief.", "Ünïcode\n\nand lines", MATH_INSTRUCTION])
    words = draw.choice([None, "{question}", "Q: {question}\nA:", "{question} Answer in \\boxed{}.", "Do {question}!"])
    kwargs = draw.choice([{}, {"enable_thinking": False}, {"enable_thinking": True, "x": [1]}])
    if by_recipe:
        options = ["--prompt_style", style, *(["--system_prompt", system] if system is not None else [])]
        options += ["--prompt_template", words] if words is not None else []
        options += ["--chat_template_kwargs", json.dumps(kwargs)] if kwargs else []
        model = train_by_recipe(tmp_path, base, *options, *draw.choice([[], ["--use_peft", "true"]]))
        model = draw.choice([model, model / "checkpoint-1"])
    else:
        words = words or "Task: {question}"
        rows = [{"prompt": own_prompt(style, system, words, row["problem"]), **row} for row in PROBLEMS]
        stream = draw.choice([Dataset, IterableDataset])
        model = train_in_python(tmp_path, base, rows, stream, chat_template_kwargs=kwargs or None)
    assert len({*trained_on}) == len(PROBLEMS)
    assert asked_for(model) == {*trained_on}


def test_a_trained_base_model_that_ships_a_template_is_asked_as_it_was_trained(
    base, tmp_path, trained_on, asked_for, capsys
):
    """By its name the base model gets plain text; runs/Qwen3-4B-Base/miner is no name of a base model."""
    run = train_by_recipe(tmp_path, base)
    capsys.readouterr()
    pushed = assemble(find_model(run), new(tmp_path / "pushed"), name="me/model", place=copy)
    for model in (run, run / "checkpoint-1", pushed):
        assert asked_for(model) == {*trained_on}
        assert "was trained on" not in capsys.readouterr().err
    assert asked_for(base) == {*trained_on}
    assert "--style chat chooses the other form" in capsys.readouterr().err
    assert asked_for(run, "--style", "chat").isdisjoint(trained_on)
    said = capsys.readouterr().err
    assert "was trained on plain text" in said and "as the options say" in said


def new(folder: Path) -> Path:
    folder.mkdir()
    return folder
