"""A recipe is read once: its YAML file, the words behind it, and what is wrong with either."""

import os
import subprocess
import sys

import pytest
from harness import write_recipe

from trl_miner.recipe.files import is_recipe, shipped
from trl_miner.recipe.reading import OWN_FILE, read, read_plain

MODEL = {"model_name_or_path": "trl_miner/arithmetic"}
RECIPES = [name for name in shipped() if is_recipe(name)]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "problems.csv").write_text("question,answer\n1+1,2\n")
    return tmp_path


def test_a_word_replaces_what_the_recipe_says_and_others_stay(here):
    path = write_recipe(here / "small.yaml", **MODEL, seed=3, max_steps=7)
    recipe = read([path, "--max_steps", "9", "--no-shuffle-dataset"])
    assert (recipe.config.seed, recipe.config.max_steps) == (3, 9)
    assert recipe.config.shuffle_dataset is False
    assert recipe.config.output_dir == "runs/small" and recipe.mixture is None
    assert recipe.given["max_steps"] == 9 and "temperature" not in recipe.given


def test_a_recipe_is_named_in_any_way(here):
    path = write_recipe(here / "small.yaml", **MODEL)
    ways = (
        ["small"],
        [path],
        ["--config", path],
        [f"--config={path}"],
        ["--seed=3", "--config", path],
    )
    for words in ways:
        found, settings = read_plain(words)
        assert found.name == "small.yaml" and settings["max_steps"] == 2
    assert settings["seed"] == 3


def test_a_file_of_ones_own_is_a_recipe_by_itself(here):
    words = ["problems.csv", "--model", "M", "--max_steps=5", "--use_cpu"]
    recipe = read(words)
    assert recipe.path is None and recipe.data.dataset_name == "problems.csv"
    assert recipe.model.model_name_or_path == "M" and recipe.config.output_dir == "runs/problems"
    assert recipe.given == {
        **OWN_FILE,
        "dataset_name": "problems.csv",
        "model_name_or_path": "M",
        "max_steps": 5,
        "use_cpu": True,
    }


def test_values_get_the_type_of_their_setting(here):
    (here / "a.yaml").write_text(
        "learning_rate: 1e-3\nmax_steps: 4\nuse_cpu: yes\nreward_funcs: math_reward\n"
        "model_init_kwargs: {low_cpu_mem_usage: true}\nscale_rewards: false\nheld_out: 20\n"
        "adam_beta2: 1\nmax_completion_length: null\n"
    )
    recipe = read(["a.yaml", "--model", "M"])
    config = recipe.config
    assert (config.learning_rate, config.max_steps, config.adam_beta2) == (1e-3, 4, 1.0)
    assert recipe.run.reward_funcs == ["math_reward"] and recipe.run.held_out == 20
    assert config.model_init_kwargs == {"low_cpu_mem_usage": True}
    assert config.scale_rewards == "none"  # as TRL documents of false
    assert config.max_completion_length is None


@pytest.mark.parametrize(
    ("text", "held_out"),
    [
        ("0.1", 0.1),
        ("200", 200),
        ("0", 0),
        ("gsm8k:200", "gsm8k:200"),
        ("mine=a.csv", "mine=a.csv"),
    ],
)
def test_held_out_is_a_number_or_a_benchmark(here, text, held_out):
    recipe = read(["problems.csv", "--model", "M", "--use_cpu", "--held_out", text])
    assert recipe.run.held_out == held_out and type(recipe.run.held_out) is type(held_out)


def test_a_mixture_of_data_sets(here):
    datasets = [{"path": "a", "fraction": 0.5}, {"path": "b", "name": "c", "fraction": 0.5}]
    path = write_recipe(here / "small.yaml", **MODEL, datasets=datasets, dataset_name=None)
    assert [each.path for each in read([path]).mixture.datasets] == ["a", "b"]


def test_the_environment_of_a_recipe_is_set(here, monkeypatch):
    monkeypatch.setenv("MY_SETTING", "before")
    read_plain([write_recipe(here / "small.yaml", **MODEL, env={"MY_SETTING": 1})])
    assert os.environ["MY_SETTING"] == "1"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["./smal"], "No recipe or file named './smal'"),
        (
            ["small", "--max_stepz", "3"],
            "There is no setting 'max_stepz'. Did you mean 'max_steps'?",
        ),
        (["small", "--max_steps", "ten"], "--max_steps is 'ten'. It must be a whole number."),
        (["small", "--learning_rate", "fast"], "--learning_rate is 'fast'. It must be a number."),
        (["small", "--use_cpu", "perhaps"], "Truthy value expected: got perhaps"),
        (["small", "--seed"], "--seed: expected one argument."),
        (
            ["--model", "M", "small"],
            "Unexpected word 'small'. A recipe, or a file of your own, stands",
        ),
        (["small", "--path", "a"], "There is no setting 'path'"),  # of a mixture's data set
        (["small", "--lr_scheduler_type", "straight"], "straight"),
        (["problems.csv"], "There is no model to train. Give a recipe"),
        (["nofile.csv"], "No recipe or file named 'nofile.csv'."),
        ([""], "No recipe or file named ''."),
    ],
)
def test_a_mistake_on_the_command_line(here, words, told):
    write_recipe(here / "small.yaml", **MODEL)
    with pytest.raises(ValueError) as error:
        read(words)
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("max_stepz: 3", "There is no setting 'max_stepz'. Did you mean 'max_steps'?"),
        ("max_steps: 1.5", "--max_steps is '1.5'. It must be a whole number."),
        ("max_steps: [1]", "--max_steps is '[1]'. It must be a whole number."),
        ("learning_rate: true", "--learning_rate is 'True'. It must be a number."),
        ("max_steps: 3:", "a.yaml cannot be read: mapping values are not allowed here"),
        ("- max_steps", "a.yaml must hold lines such as `max_steps: 100`."),
        ("", "a.yaml must hold lines such as `max_steps: 100`."),
        ("1: 2", "a.yaml must hold lines such as `max_steps: 100`."),
        ("correct_threshold: [1]", "--correct_threshold is '[1]'. It must be a number."),
    ],
)
def test_a_mistake_in_the_recipe(here, text, told):
    (here / "a.yaml").write_text(text)
    with pytest.raises(ValueError) as error:
        read(["a.yaml", "--use_cpu", "--model", "M"])
    assert told in str(error.value)


def test_an_unknown_name_is_told_before_torch_is_loaded():
    code = (
        "import sys\nfrom trl_miner.recipe.reading import read\n"
        "try: read(['arithmetic/quick', '--learning-rat', '1'])\n"
        "except ValueError as error: print(error)\n"
        "print(sorted({'torch', 'trl', 'transformers'} & {*sys.modules}))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    told = "There is no setting 'learning-rat'. Did you mean 'learning_rate'?"
    assert ended.stdout.splitlines() == [told, "[]"]


def test_without_a_gpu_a_recipe_for_gpus_is_refused_and_can_still_be_planned(here):
    path = write_recipe(here / "small.yaml", **MODEL, use_cpu=False, bf16=True)
    with pytest.raises(ValueError, match="^No GPU found here. Add --use_cpu true"):
        read([path])
    assert read_plain([path])[1]["bf16"] is True
