"""A recipe made from a data set: `trl-miner train problems.csv --model MODEL`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from datasets import load_dataset
from transformers import AutoConfig, AutoTokenizer
from trl import DatasetMixtureConfig, ModelConfig

from trl_miner import cli, train
from trl_miner.data_recipe.first_word import is_data, with_made_recipe
from trl_miner.data_recipe.making import make_recipe
from trl_miner.data_recipe.model_knobs import choose_knobs, learning_rate
from trl_miner.recipe.parsing import MinerScriptArguments, read_recipe
from trl_miner.recipe.training_data import held_out_problems, load_data

SUMS = "question,result\n" + "".join(f"{a} + 1 =,{a + 1}\n" for a in range(20))


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("sums.csv").write_text(SUMS)


ROWS = [{"Problem": "1 + 1", "id": 7, "Answer": "2"}, {"Problem": "1 + 2", "id": 8, "Answer": "3"}]
WORKED = [{"question": "1 + 1?", "answer": "One and one.\n#### 2"}]
CHOICES = [{"question": "Which?", "choices": ["red", "blue"], "answer": "B"}]


@pytest.mark.parametrize(
    ("rows", "given", "expected"),
    [
        (ROWS, {}, ["Problem", "Answer", None, None, ["math_reward"]]),
        (WORKED, {}, ["question", "answer", None, r"####\s*(.+)", ["math_reward"]]),
        (CHOICES, {}, ["question", "answer", "choices", None, ["choice_reward"]]),
        # `prompt` comes after `question`; what is left is the answer, whatever it is called
        ([{"prompt": "2 + 2", "wert": "4"}], {}, ["prompt", "wert", None, None, ["math_reward"]]),
        (
            [{"question": "1 + 1", "hint": "2", "answer": "wrong"}],
            {"dataset_solution_column": "hint", "reward_funcs": ["my_rewards.own"]},
            ["question", "hint", None, None, ["my_rewards.own"]],
        ),
    ],
)
def test_columns_and_verifier_are_guessed_where_the_user_does_not_say_them(rows, given, expected):
    Path("data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe, _ = make_recipe("data.jsonl", {"model_name_or_path": "some/model", **given})
    keys = (
        "dataset_prompt_column",
        "dataset_solution_column",
        "dataset_options_column",
        "answer_pattern",
    )
    assert [recipe.get(key) for key in (*keys, "reward_funcs")] == expected
    # prompts stay as they are: here none asks for a box
    assert recipe.get("math_accept_unboxed", False) == (expected[0] == "prompt")


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        (
            "a,b,c\n1,2,3\n",
            [],
            "looks like the question: there are a, b, c.*--dataset_prompt_column",
        ),
        (
            "question,b,c\n1,2,3\n",
            [],
            "looks like the answer: there are b, c.*--dataset_solution_column",
        ),
        ("question,answer\n", [], "data.csv has no rows"),
        (
            "question,answer\nWhy?,Because it is so.\\nYes\nHow?,So.\n",
            ["--answer_pattern", "x"],
            "answer_pattern",
        ),
        ("question,answer\n1,2\n", ["--dataset_train_split", "dev"], "no split 'dev', but train"),
    ],
)
def test_what_cannot_be_guessed_is_told_with_the_option_that_says_it(text, words, said):
    Path("data.csv").write_text(text)
    with pytest.raises(ValueError, match=said):
        with_made_recipe(["data.csv", "--model", "trl_miner/arithmetic", *words])


def test_a_file_that_is_not_there_and_a_missing_model_are_told():
    with pytest.raises(ValueError, match="^File not found: nothing.csv"):
        with_made_recipe(["nothing.csv", "--model", "m"])
    with pytest.raises(ValueError, match="^No model to train on sums.csv. Add --model: "):
        with_made_recipe(["sums.csv"])
    with pytest.raises(
        ValueError, match="^No model to train on arithmatic/miner. Did you mean 'arithmetic/miner'"
    ):
        with_made_recipe(["arithmatic/miner"])


def test_a_recipe_for_a_gpu_scores_as_many_rollouts_at_once_as_it_trains_on(monkeypatch):
    """The cache of 256 would take more memory than a GPU of 24 GB has."""
    monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
    recipe, _ = make_recipe("sums.csv", {"model_name_or_path": "some/model"})
    assert (
        recipe["score_batch_size"] == recipe["per_device_train_batch_size"]
        and "use_cpu" not in recipe
    )
    with_made_recipe(["sums.csv", "--model", "trl_miner/arithmetic"])
    assert "without a GPU" not in Path("runs/sums.yaml").read_text()


def test_a_data_set_is_told_from_a_recipe():
    data_sets = ["sums.csv", "openai/gsm8k", "reasoning_gym/chain_sum", "trl_miner/arithmetic"]
    recipes = ["arithmetic/miner", "arithmetic/typo", "recipes/arithmetic/miner.yaml", "mine.yaml"]
    assert [is_data(name) for name in data_sets + recipes] == [True] * 4 + [False] * 4


def test_a_recipe_may_stand_first():
    assert with_made_recipe(["arithmetic/miner", "--seed", "2"]) == [
        "--config",
        "arithmetic/miner",
        "--seed",
        "2",
    ]
    assert with_made_recipe(["--config", "a.yaml"]) == ["--config", "a.yaml"]


def test_the_process_that_starts_a_recipe_loads_neither_pytorch_nor_trl():
    """The one that trains loads them, which takes six seconds."""
    code = """
import sys
from trl_miner.commands import train
from trl_miner.launching import supervise
supervise.run_training = lambda words: 0
assert train.run(None, ["arithmetic/quick"]) == 0
print(sorted({"torch", "transformers", "trl", "datasets", "peft", "pandas"} & {*sys.modules}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stdout + done.stderr


MODEL = ["--model", "trl_miner/arithmetic"]


def test_the_recipe_is_the_whole_run():
    """But for what is of one start, secret, or accelerate's."""
    words = ["sums.csv", *MODEL, "--learning-rate=1e-4", "--seed", "2", "--bf16", "false"]
    of_a_start = ["--quiet", "--hub_token", "hf_x", "--num_processes", "1"]
    assert with_made_recipe([*words, *of_a_start]) == ["--config", "runs/sums.yaml", *of_a_start]
    made = yaml.safe_load(Path("runs/sums.yaml").read_text())
    assert (made["learning_rate"], made["seed"], made["bf16"]) == (1e-4, 2, False)
    assert "hf_x" not in Path("runs/sums.yaml").read_text()
    assert read_recipe("runs/sums.yaml").max_steps == 100


def test_each_knob_that_matters_is_a_line_with_a_comment():
    with_made_recipe(["sums.csv", *MODEL])
    lines = dict(line.split(":", 1) for line in Path("runs/sums.yaml").read_text().splitlines()[2:])
    assert all(
        " # " in lines[knob]
        for knob in ("learning_rate", "max_completion_length", "prompt_template", "use_vllm")
    )


def test_a_recipe_that_nobody_has_edited_is_written_anew_and_another_never():
    path = Path("runs/sums.yaml")
    for seed in ("2", "3"):
        with_made_recipe(["sums.csv", *MODEL, "--seed", seed])
    assert yaml.safe_load(path.read_text())["seed"] == 3
    edited = path.read_text().replace("held_out: 2", "held_out: 3")
    path.write_text(edited)
    with pytest.raises(ValueError, match="was edited.*trl-miner train runs/sums.yaml"):
        with_made_recipe(["sums.csv", *MODEL, "--seed", "3"])
    assert path.read_text() == edited
    with_made_recipe(["sums.csv", *MODEL, "--seed", "3", "--held_out", "3"])  # says the same
    assert path.read_text() == edited
    assert with_made_recipe(["sums.csv", *MODEL, "--output_dir", "other/"])[1] == "other.yaml"


def test_the_recipe_of_a_run_stays_beside_it():
    with_made_recipe(["sums.csv", *MODEL])
    Path("runs/sums").mkdir()
    Path("runs/sums/trainer_state.json").write_text("{}")
    with pytest.raises(ValueError, match="already contains a run"):
        with_made_recipe(["sums.csv", *MODEL, "--seed", "3"])
    assert "seed" not in yaml.safe_load(Path("runs/sums.yaml").read_text())


@pytest.mark.parametrize(
    ("parameters", "rate"), [(145e3, 2e-4), (1e6, 2e-4), (135e6, 1e-5), (0.6e9, 4e-6), (8e9, 2e-6)]
)
def test_the_learning_rate_fits_the_size_of_the_model(parameters, rate):
    """(135 / 600)^0.6 = 0.41 of 1e-5."""
    assert learning_rate(parameters) == rate
    assert learning_rate(parameters, is_adapter=True) == pytest.approx(10 * rate)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("qwen3", "The tokenizer of bare has 1 tokens. Put its files"),
        (
            "llama",
            "The model in bare could not be loaded: Couldn't instantiate the backend tokenizer."
            " Check its files.",
        ),
    ],
)
def test_a_model_without_a_tokenizer_is_refused(kind, message):
    """transformers makes an empty one, which reads every prompt as no tokens."""
    sizes = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
    AutoConfig.for_model(kind, **sizes).save_pretrained("bare")
    with pytest.raises(ValueError, match=message):
        with_made_recipe(["sums.csv", "--model", "bare"])


@pytest.mark.parametrize(
    ("template", "given", "tokens", "kwargs"),
    [
        ("{% if enable_thinking %}<think>{% endif %}", {}, 512, {"enable_thinking": False}),
        ("enable_thinking", {"chat_template_kwargs": {"enable_thinking": True}}, 4096, None),
        ("enable_thinking", {"chat_template_kwargs": {"enable_thinking": False}}, 512, None),
        ("<think>", {}, 4096, None),
        ("<think>", {"max_completion_length": 900}, None, None),
        ("no thoughts", {}, 512, None),
    ],
)
def test_a_thinking_model_has_room_for_its_answer(policy, template, given, tokens, kwargs):
    tokenizer = AutoTokenizer.from_pretrained(policy)
    tokenizer.chat_template = template
    tokenizer.save_pretrained("thinker")
    AutoConfig.from_pretrained(policy).save_pretrained("thinker")
    model = {"model_name_or_path": "thinker", "prompt_style": "chat"}
    knobs, comments = choose_knobs(model | given)
    assert knobs.get("max_completion_length") == tokens
    assert knobs.get("chat_template_kwargs") == kwargs
    assert ("chat_template_kwargs" in comments) == (kwargs is not None)


def test_the_recipe_trains_and_scores_what_it_holds_out(policy):
    words = [
        "sums.csv",
        "--model",
        str(policy),
        "--max_steps",
        "1",
        "--save_steps",
        "1",
        "--report_to",
        "none",
    ]
    options = [
        "--score_samples",
        "1",
        "--max_completion_length",
        "4",
        "--save_strategy",
        "no",
        "--quiet",
    ]
    train.main(with_made_recipe([*words, *options]))
    held_out = json.loads(Path("runs/sums/held_out.json").read_text())
    assert len(held_out["moments"]["after"]["num_correct"]) == 2  # a tenth of 20
    assert yaml.safe_load(Path("runs/sums.yaml").read_text())["held_out"] == 2


@pytest.mark.parametrize(
    ("held_out", "said"),
    [
        ("20", "No problems are left to train on"),
        ("-1", "held_out must be a whole number, or a share"),
    ],
)
def test_a_part_that_cannot_be_held_out_is_told(policy, held_out, said):
    with pytest.raises(ValueError, match=said):
        train.main(with_made_recipe(["sums.csv", "--model", str(policy), "--held_out", held_out]))


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        (dict(held_out=5), (15, 5)),
        (dict(held_out=0.1), (18, 2)),  # of 20
        # a test split: its first 5
        (dict(dataset_name="trl_miner/arithmetic", held_out=5, task_size=8), (8, 200)),
    ],
)
def test_problems_are_split_off_where_there_is_no_test_split(settings, sizes):
    args = MinerScriptArguments(**{"dataset_name": "sums.csv", **settings})
    data = load_data(args, DatasetMixtureConfig(), ModelConfig(model_name_or_path=None))
    assert (len(data["train"]), len(data["test"]) if "test" in data else None) == sizes
    if sizes[1]:
        questions = [
            {
                *map(
                    str,
                    data[split]["prompt" if "prompt" in data[split].column_names else "question"],
                )
            }
            for split in data
        ]
        assert not set.intersection(*questions)


def test_a_test_split_that_is_named_must_be_there():
    args = MinerScriptArguments(
        dataset_name="sums.csv", dataset_test_split="validation", held_out=5
    )
    with pytest.raises(
        ValueError, match="dataset_test_split must be a split of the data set: got 'validation'"
    ):
        load_data(args, DatasetMixtureConfig(), ModelConfig(model_name_or_path=None))


def test_a_stream_has_problems_to_score():
    data = load_dataset(
        "csv", data_files=dict.fromkeys(("train", "test"), "sums.csv"), streaming=True
    )
    data = data.rename_column("question", "prompt")
    problems, _ = held_out_problems(MinerScriptArguments(held_out=3), data, None)
    assert problems["prompt"] == ["0 + 1 =", "1 + 1 =", "2 + 1 ="]


@pytest.mark.parametrize("command", ["launch", "doctor"])
def test_launch_and_doctor_take_a_data_set_as_train_does(policy, command, capsys):
    words = ["sums.csv", "--model", str(policy), "--max_completion_length", "8"]
    assert cli.main([command, *words, *["--dry-run"] * (command == "launch")]) == 0
    assert yaml.safe_load(Path("runs/sums.yaml").read_text())["dataset_name"] == "sums.csv"
    assert (
        "--config runs/sums.yaml" if command == "launch" else "and what they are read as"
    ) in capsys.readouterr().out
