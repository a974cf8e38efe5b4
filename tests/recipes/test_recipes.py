"""The shipped recipes and the table of overrides in recipes/README.md."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

RECIPES = Path(__file__).parents[2] / "recipes"
MODELS = ("Qwen3-4B-Base", "Qwen3-8B-Base", "Qwen3-14B-Base", "Llama-3.1-8B-Instruct")
MODELS = (*MODELS, "OctoThinker-8B-Hybrid-Base")
ALL = sorted(
    path
    for path in RECIPES.rglob("*.yaml")
    if "accelerate" not in path.parts and "models" not in path.parts
)
PAGE = (RECIPES / "README.md").read_text("utf-8")


def table(name):
    """Return the cells of the rows of a marked table: the first as text, the others' options."""
    rows = re.search(rf"<!-- {name} -->\n(.*?)\n\n", PAGE, re.DOTALL)[1].splitlines()[2:]
    cells = ([cell.strip() for cell in row.strip("|").split("|")] for row in rows)
    return {first: [each.strip("`").split() for each in others] for first, *others in cells}


METHODS = {name: options for name, (options, *_) in table("methods").items()}
MACHINES = {name: options for name, (options, *_) in table("machines").items()}
MINIBATCHES = {name: (model, small) for name, (model, small, *_) in table("minibatches").items()}


def recipe_of(method, folder):
    """Return the recipe that a method's options are added to."""
    return f"{folder}/{'miner' if method.startswith('MINER') else 'grpo'}"


def test_each_model_of_the_paper_has_two_recipes_that_differ_in_the_method_alone():
    for folder in (*MODELS, "arithmetic", "forks", "two-procedures"):
        grpo, miner = (
            yaml.safe_load((RECIPES / folder / f"{name}.yaml").read_text("utf-8"))
            for name in ("grpo", "miner")
        )
        assert grpo.pop("advantage_estimator") == "grpo"
        for recipe in (grpo, miner):
            recipe.pop("output_dir")
            recipe.pop("log_token_credit", None)
        assert grpo == miner, folder


@pytest.mark.parametrize("path", ALL, ids=lambda path: str(path.relative_to(RECIPES)))
def test_a_recipe_is_read_and_states_only_what_differs_from_the_defaults(path):
    from trl_miner.recipe.reading import read_plain

    given = yaml.safe_load(path.read_text("utf-8"))
    given.pop("env", None)  # of the process
    found, settings = read_plain([str(path)])
    _, defaults = read_plain(["--model_name_or_path", given["model_name_or_path"]])
    assert found == path
    assert [name for name in given if settings[name] == defaults[name]] == ["model_name_or_path"]
    # the first line says what it is, as `trl-miner recipes` shows it
    assert re.match(r"# .*\.\n", path.read_text("utf-8"))


@pytest.mark.parametrize("method", METHODS)
def test_each_command_of_the_table_is_read(method):
    from trl_miner.recipe.reading import read

    for folder in ("Qwen3-4B-Base", "Llama-3.1-8B-Instruct"):
        options = [*METHODS[method], *MINIBATCHES.get(method, ([], []))[0]]
        recipe = read([recipe_of(method, folder), *options, "--use_cpu", "true"])
        names = [word[2:] for word in options if word.startswith("--")]
        assert {*names} <= recipe.given.keys()
        # a generation batch of 2048 completions, 314 (664) of them, whatever the mini-batches
        config, steps = recipe.config, 664 if folder.startswith("Llama") else 314
        assert config.generation_batch_size == 2048
        if folder == "Qwen3-4B-Base":
            passes = 2048 / config.optimizer_batch_size * config.num_iterations
            assert config.max_steps == steps * passes
            assert config.logging_steps == passes


@pytest.mark.parametrize("machine", MACHINES)
def test_each_machine_of_the_table_is_read(machine):
    from trl_miner.recipe.reading import read_plain

    _, settings = read_plain(["Qwen3-14B-Base/miner", *MACHINES[machine]])
    assert settings["beta"] == 0.001


def test_the_authors_script_is_read():
    from trl_miner.recipe.reading import read_plain

    block = re.search(r"<!-- authors -->\n```bash\n(.*?)```", PAGE, re.DOTALL)[1]
    _, settings = read_plain(shlex.split(block.replace("\\\n", ""))[2:])
    assert settings["max_steps"] == 628
    assert settings["prompt_template"].endswith("\\boxed{}. \nUser: {question}\nAssistant: ")


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_each_method_of_the_table_trains_two_steps(method, tmp_path):
    from trl_miner.recipe.reading import read
    from trl_miner.run.training import Run

    small = [*METHODS[method], *MINIBATCHES.get(method, ([], []))[1]]
    batch = 64 if "--per_device_train_batch_size" not in small else None
    options = [
        *small,
        "--max_steps",
        "2",
        "--held_out",
        "0",
        "--logging_steps",
        "1",
        "--quiet",
        "true",
    ]
    options += ["--per_device_train_batch_size", str(batch)] if batch else []
    Run(read([recipe_of(method, "arithmetic"), *options, "--output_dir", str(tmp_path)])).go()
    assert (tmp_path / "model.safetensors").is_file()
