"""A model is asked in the form of prompt that it was trained in: the same tokens in the training
and in `eval`."""

import json
import shutil
from pathlib import Path

import pytest
from datasets import Dataset, IterableDataset
from harness import config
from peft import LoraConfig
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from trl_miner import cli
from trl_miner.data.prompt_form import FILE, form_of_rows, read_form, write_form
from trl_miner.data.prompts import MATH_INSTRUCTION, PromptForm, build_prompt
from trl_miner.evaluation.backends import TransformersBackend
from trl_miner.hub.folder import assemble
from trl_miner.runs.models import find_model
from trl_miner.train import main
from trl_miner.training import RunTrainer

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}{% if"
    " add_generation_prompt %}<|assistant|>{% if enable_thinking is defined and not enable_thinking"
    " %}<think></think>{% endif %}{% endif %}"
)
PROBLEMS = [{"problem": f"What is {n} + {n * n}?", "answer": str(n + n * n)} for n in range(2, 14)]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A model whose tokens are bytes and which ships a chat template, as Qwen3-4B-Base does. The
    tokenizer begins each text with a token that the template does not write."""
    folder = tmp_path_factory.mktemp("models") / "Qwen3-4B-Base"
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: place for place, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        "<s> $A", None, [("<s>", tokenizer.token_to_id("<s>"))]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )
    fast.chat_template = TEMPLATE
    size = dict(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        head_dim=16,
    )
    settings = Qwen3Config(
        vocab_size=len(fast), num_key_value_heads=1, max_position_embeddings=1024, **size
    )
    Qwen3ForCausalLM(settings).save_pretrained(folder)
    fast.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def trained_on(monkeypatch):
    """The prompts, in tokens, that trainings generate for."""
    seen, generate = [], RunTrainer._generate_single_turn

    def spy(self, prompt_ids, *args, **kwargs):
        seen.extend(map(tuple, prompt_ids))
        return generate(self, prompt_ids, *args, **kwargs)

    monkeypatch.setattr(RunTrainer, "_generate_single_turn", spy)
    return seen


@pytest.fixture
def asked_for(monkeypatch, tmp_path):
    """Run `eval` on the problems of the training, and return the prompts, in tokens, that the
    backend got."""
    seen, sample = [], TransformersBackend.sample

    def spy(self, requests, *args):
        seen.extend(request.ids for request in requests)
        return sample(self, requests, *args)

    monkeypatch.setattr(TransformersBackend, "sample", spy)

    def ask(model, *options):
        seen.clear()
        assert (
            cli.main([*eval_command(tmp_path, model), "--backend", "transformers", *options]) == 0
        )
        return {*seen}

    return ask


def eval_command(folder, model):
    count = len(list(folder.glob("eval-*")))
    own = [
        "--benchmarks",
        f"own={write(folder, PROBLEMS)}",
        "--output",
        str(folder / f"eval-{count}"),
    ]
    return ["eval", "--model", str(model), *own, "--samples", "1", "--max-tokens", "1"]


def write(folder: Path, rows) -> str:
    path = folder / "problems.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def any_reward(completions, **kwargs):
    return [float(place % 2) for place in range(len(completions))]


def train_by_recipe(folder, model, *options):
    """Train one step on the problems; twelve prompts of two rollouts."""
    folder.mkdir(exist_ok=True)
    settings = dict(
        model_name_or_path=model, dataset_name=write(folder, PROBLEMS), dataset_prompt_column="problem",
        dataset_solution_column="answer", output_dir=folder / "runs" / "Qwen3-4B-Base" / "miner", max_steps=1,
        num_generations=2, per_device_train_batch_size=24, max_completion_length=2, save_steps=1, report_to="none",
        use_cpu=True, bf16=False, gradient_checkpointing=False,
    )  # fmt: skip
    main(
        [word for name, value in settings.items() for word in (f"--{name}", str(value))]
        + list(options)
    )
    return settings["output_dir"]


def train_in_python(folder, model, rows, cls=Dataset, **settings):
    rows = Dataset.from_list(rows)
    shape = dict(
        max_steps=1, num_generations=2, per_device_train_batch_size=24, max_completion_length=2
    )
    args = config(folder / "own", **{**shape, **settings})
    data = rows if cls is Dataset else rows.to_iterable_dataset()
    trainer = RunTrainer(model, any_reward, args, train_dataset=data)
    trainer.train()
    trainer.save_model()
    return folder / "own"


def own_prompt(style, system, words, problem):
    text = words.replace("{question}", problem)
    if style == "plain":
        return text
    messages = [{"role": "user", "content": text}]
    return messages if system is None else [{"role": "system", "content": system}, *messages]


THINKS = {"enable_thinking": True, "x": [1]}
NO_THOUGHT = {"enable_thinking": False}


@pytest.mark.parametrize(
    ("style", "system", "words", "kwargs", "options"),
    [
        ("chat", "Be brief. Box it.", None, NO_THOUGHT, []),
        ("plain", "Ünïcode\n\nand a box", "{question}", THINKS, ["--use_peft", "true"]),
    ],
)
def test_a_model_is_asked_for_the_tokens_that_its_recipe_trained(
    base, tmp_path, trained_on, asked_for, style, system, words, kwargs, options
):
    options = [
        *options,
        "--prompt_style",
        style,
        "--system_prompt",
        system,
        *(["--prompt_template", words] if words else []),
    ]
    model = train_by_recipe(tmp_path, base, *options, "--chat_template_kwargs", json.dumps(kwargs))
    assert len({*trained_on}) == len(PROBLEMS)
    assert asked_for(model) == {*trained_on}


@pytest.mark.parametrize(
    ("style", "system", "words", "kwargs", "stream"),
    [
        ("chat", MATH_INSTRUCTION, "Task: {question}", NO_THOUGHT, IterableDataset),
        ("plain", None, "Q: {question}\nA:", None, Dataset),
        ("chat", None, "{question} Answer in \\boxed{}.", THINKS, Dataset),
    ],
)
def test_a_model_is_asked_for_the_tokens_that_its_data_brought(
    base, tmp_path, trained_on, asked_for, style, system, words, kwargs, stream
):
    rows = [{"prompt": own_prompt(style, system, words, row["problem"]), **row} for row in PROBLEMS]
    model = train_in_python(tmp_path, base, rows, stream, chat_template_kwargs=kwargs)
    assert len({*trained_on}) == len(PROBLEMS)
    assert asked_for(model) == {*trained_on}


def test_a_trained_base_model_that_ships_a_template_is_asked_as_it_was_trained(
    base, tmp_path, trained_on, asked_for, capsys
):
    """By its name the base model gets plain text; runs/Qwen3-4B-Base/miner is no name of a base
    model."""
    run = train_by_recipe(tmp_path, base)
    capsys.readouterr()
    pushed = assemble(find_model(run), new(tmp_path / "pushed"), name="me/model")
    for model in (run / "checkpoint-1", pushed):
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


def test_a_run_that_goes_on_takes_the_style(base, tmp_path, trained_on):
    first = shutil.copytree(base, tmp_path / "first")
    write_form(first, PromptForm("chat"))
    seen = []
    for options in ([], ["--prompt_template", "{question} Box it."]):
        train_by_recipe(tmp_path / f"{len(seen)}", first, *options)
        seen.append({*trained_on})
        trained_on.clear()
    tokenizer = AutoTokenizer.from_pretrained(base)
    messages = build_prompt("math", PROBLEMS[0]["problem"], form=PromptForm("chat"))
    assert (
        tuple(tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"])
        in seen[0]
    )
    assert seen[0].isdisjoint(seen[1])


def test_held_out_problems_of_a_benchmark_are_asked_as_the_data_sets_own_prompts(
    base, tmp_path, trained_on
):
    rows = [
        {"prompt": own_prompt("chat", "Be brief.", "{question} Box it.", row["problem"])} | row
        for row in PROBLEMS
    ]
    held = [{"problem": f"What is {n} - 1?", "answer": str(n - 1)} for n in range(3)]
    (tmp_path / "held.jsonl").write_text("".join(json.dumps(row) + "\n" for row in held))
    data = write(new(tmp_path / "data"), [{**row, "solution": row["answer"]} for row in rows])
    options = ["--held_out", f"held={tmp_path}/held.jsonl", "--dataset_name", data]
    model = train_by_recipe(tmp_path, base, *options, "--dataset_prompt_column", "prompt")
    tokenizer = AutoTokenizer.from_pretrained(model)
    expected = {
        tuple(tokenizer.apply_chat_template(own_prompt("chat", "Be brief.", "{question} Box it.", row["problem"]),
              add_generation_prompt=True)["input_ids"]) for row in held
    }  # fmt: skip
    assert expected <= {*trained_on} and len({*trained_on}) == len(rows) + len(held)


def test_a_supervised_start_is_in_the_form_of_its_recipe(base, tmp_path, asked_for):
    start = tmp_path / "start"
    kwargs = {"enable_thinking": False}
    recipe = dict(
        model_name_or_path=start, dataset_name=write(tmp_path, PROBLEMS), dataset_prompt_column="problem",
        dataset_solution_column="answer", output_dir=tmp_path / "run", prompt_style="chat", use_cpu="true",
        bf16="false", gradient_checkpointing="false", chat_template_kwargs=json.dumps(kwargs),
    )  # fmt: skip
    (tmp_path / "r.yaml").write_text(
        "".join(f"{name}: {value}\n" for name, value in recipe.items())
    )
    assert (
        cli.main(["sft", "--config", str(tmp_path / "r.yaml"), "--model", base, "--steps", "1"])
        == 0
    )
    assert read_form(str(start)) == PromptForm("chat", template_kwargs=kwargs)
    decode = AutoTokenizer.from_pretrained(start).decode
    assert all(decode(ids).endswith("<|assistant|><think></think>") for ids in asked_for(start))


def test_an_adapters_own_chat_template_is_that_of_its_training(
    base, tmp_path, trained_on, asked_for
):
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.chat_template = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
    rows = Dataset.from_list(
        [
            {"prompt": own_prompt("chat", None, "{question}", row["problem"])} | row
            for row in PROBLEMS
        ]
    )
    args = config(tmp_path / "own", max_steps=1, num_generations=2, per_device_train_batch_size=24)
    trainer = RunTrainer(
        base,
        any_reward,
        args,
        rows,
        processing_class=tokenizer,
        peft_config=LoraConfig(target_modules="all-linear"),
    )
    trainer.train()
    trainer.save_model()
    assert (
        asked_for(tmp_path / "own")
        == asked_for(base, "--adapter", str(tmp_path / "own"))
        == {*trained_on}
    )


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"style": "prose"}', '{"style": "chat", "chat_template_kwargs": [], "is_known": true}',
     '{"style": "plain", "prompt_template": "no place", "chat_template_kwargs": {}, "is_known": true}'],
)  # fmt: skip
def test_a_damaged_file_is_an_error_and_no_guess(base, tmp_path, capsys, content):
    folder = shutil.copytree(base, tmp_path / "model")
    (folder / FILE).write_text(content)
    assert cli.main(eval_command(tmp_path, folder)) == 2
    assert FILE in capsys.readouterr().err


def test_a_finished_run_on_a_stream_that_is_started_again_keeps_its_form(base, tmp_path):
    rows = [
        {"prompt": own_prompt("chat", "Be brief.", "Q {question}", row["problem"])} | row
        for row in PROBLEMS
    ]
    folder = tmp_path / "own"
    shape = dict(
        max_steps=1, num_generations=2, per_device_train_batch_size=24, max_completion_length=2
    )
    for _ in range(2):
        args = config(folder, save_strategy="steps", save_steps=1, **shape)
        trainer = RunTrainer(base, any_reward, args, Dataset.from_list(rows).to_iterable_dataset())
        trainer.train(resume_from_checkpoint="latest")
        trainer.save_model()
        assert (read_form(folder).style, read_form(folder).system) == ("chat", "Be brief.")


def test_the_words_of_prompts_are_found_or_said_not_to_be():
    texts = [f"Solve: {row['problem']}\nEnd." for row in PROBLEMS]
    form = form_of_rows({"prompt": text} for text in texts)
    assert (form.template, form.is_known) == ("{question}", False)
    form = form_of_rows(
        {"prompt": text, "q": row["problem"]} for text, row in zip(texts, PROBLEMS, strict=True)
    )
    assert (form.template, form.is_known) == ("Solve: {question}\nEnd.", True)
    for style in ("plain", "chat"):
        for kind, options in (("math", ()), ("choice", ("red", "blue")), ("task", ())):
            prompts = [
                build_prompt(kind, row["problem"], options, form=PromptForm(style))
                for row in PROBLEMS
            ]
            assert form_of_rows({"prompt": prompt} for prompt in prompts) == PromptForm(style)
    several = [{"role": role, "content": "1 + 1"} for role in ("user", "assistant", "user")]
    assert not form_of_rows([{"prompt": several}] * 3).is_known
    assert form_of_rows([{"question": "1 + 1"}]) is None
    # 200 prompts in one form, then 40 in another, as of two data sets one after the other
    rows = [
        {"q": f"{n} + {n}", "prompt": f"Q: {n} + {n}" if n < 200 else f"{n} + {n} = ?"}
        for n in range(240)
    ]
    assert form_of_rows(Dataset.from_list(rows[:200])).is_known
    assert not form_of_rows(Dataset.from_list(rows)).is_known
