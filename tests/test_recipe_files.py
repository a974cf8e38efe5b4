"""Recipes by name, in a checkout and from what a wheel holds; and copies of them."""

import email
import re
import runpy
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from trl_miner import cli
from trl_miner.launching.local import find_file, launcher_arguments
from trl_miner.launching.plan import make_plan
from trl_miner.recipe import files as recipe_files
from trl_miner.recipe.parsing import read_recipe

ROOT = Path(__file__).parent.parent
RECIPES = ROOT / "recipes"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """A current folder outside of the checkout."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of a release."""
    work = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, ROOT / ".ci" / "release.py", work, "https://github.com/OWNER/NAME"]
    subprocess.run(command, check=True, capture_output=True)
    return next(work.glob("*.whl"))


def metadata_of(wheel):
    described = next(
        path for path in zipfile.Path(wheel).iterdir() if path.name.endswith(".dist-info")
    )
    return (described / "METADATA").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_wheel_holds_all_recipes_and_what_they_need(wheel):
    folder = "trl_miner/recipes/"
    held = [
        name.removeprefix(folder)
        for name in zipfile.ZipFile(wheel).namelist()
        if name.startswith(folder)
    ]
    shipped = {str(path.relative_to(RECIPES)) for path in recipe_files.shipped().values()}
    others = {
        str(path.relative_to(RECIPES))
        for end in ("py", "README.md")
        for path in RECIPES.glob(f"*/*{end}")
    }
    assert shipped | others == {*held}
    assert {"arithmetic/miner.yaml", "accelerate/zero3.yaml", "slurm/train.slurm"} <= shipped


@pytest.mark.slow
def test_the_readme_of_a_release_has_whole_addresses_for_files_that_are_there(wheel):
    metadata = email.message_from_string(metadata_of(wheel))
    links = re.findall(r"\]\(([^)]+)\)", metadata.get_payload())
    ours = [
        link.removeprefix("https://github.com/OWNER/NAME/") for link in links if "/OWNER/" in link
    ]
    assert all(link.startswith("https://") for link in links)
    assert "raw/main/docs/images/inspect.png" in ours and "blob/main/LICENSE" in ours
    assert all((ROOT / link.partition("/main/")[2].partition("#")[0]).exists() for link in ours)
    assert "Source, https://github.com/OWNER/NAME" in metadata.get_all("Project-URL")


def test_the_readme_of_a_release_from_nowhere_has_no_dead_links_and_no_broken_pictures():
    readme_of_a_release = runpy.run_path(str(ROOT / ".ci" / "release.py"))["readme_of_a_release"]
    shown = readme_of_a_release(
        "[![a](b.png)](c.md) [the **text** of a link](d.md#e) ![f](g.png) [h](https://i) [j](#k)"
    )
    assert shown == " the **text** of a link  [h](https://i) [j](#k)"


@pytest.mark.parametrize(
    "name", ["arithmetic/miner", "arithmetic/miner.yaml", "recipes/arithmetic/miner.yaml"]
)
def test_a_shipped_recipe_is_found_by_name_wherever_one_is(name):
    path = RECIPES / "arithmetic" / "miner.yaml"
    assert recipe_files.find_recipe(name) == path
    assert (
        read_recipe(name).output_dir
        == make_plan(name, num_gpus=0).settings.output_dir
        == "runs/arithmetic/miner"
    )
    assert str(path) in launcher_arguments(["--max_steps", "3", "--config", name])


@pytest.mark.parametrize(
    "local", ["arithmetic/miner", "arithmetic/miner.yaml", "recipes/arithmetic/miner.yaml"]
)
def test_a_local_file_of_that_name_goes_first(local):
    Path(local).parent.mkdir(parents=True)
    Path(local).write_text("output_dir: mine\n")
    assert recipe_files.find_recipe("arithmetic/miner") == Path(local)


@pytest.mark.parametrize(
    ("name", "suggested"),
    [
        ("arithmetic/minr", "Did you mean 'arithmetic/miner'"),
        ("nothing-like-it", "Try arithmetic/quick. `trl-miner recipes` shows all recipes."),
        ("accelerate/zero3", "Try arithmetic/quick"),
    ],
)
def test_an_unknown_name_gets_a_similar_one(name, suggested):
    with pytest.raises(ValueError, match=f"^No recipe or file named '{name}'.") as error:
        recipe_files.find_recipe(name)
    assert suggested in str(error.value)


def test_accelerate_configurations_come_along():
    assert (
        find_file("recipes/accelerate/multi_node.yaml", None)
        == RECIPES / "accelerate" / "multi_node.yaml"
    )
    assert "trl" in find_file("zero3", None).parts[-3]
    with pytest.raises(
        ValueError, match="No configuration named 'arithmetic/miner' for accelerate_config"
    ):
        find_file("arithmetic/miner", None)


def rows_of(words, capsys):
    assert cli.main(["recipes", *words, "--quiet"]) == 0
    lines = capsys.readouterr().out.splitlines()
    return [line.split(maxsplit=1) for line in lines if line.startswith("  ")]


def test_the_list_has_six_recipes_to_start_with_and_every_folder(capsys):
    rows = rows_of([], capsys)
    starters, shipped = [*recipe_files.STARTERS], [*recipe_files.shipped()]
    assert [name for name, _ in rows] == [*starters, *recipe_files.FOLDERS]
    assert len(starters) == 6 and {*starters} < {*shipped}
    assert {*recipe_files.FOLDERS} == {name.partition("/")[0] for name in shipped}


def test_the_list_of_a_folder_has_every_file_once_with_what_it_does_in_a_whole_sentence(capsys):
    rows = [row for folder in recipe_files.FOLDERS for row in rows_of([folder], capsys)]
    assert sorted(name for name, _ in rows) == sorted(recipe_files.shipped())
    assert [name for name, text in rows if not text.endswith(".")] == []
    assert [text for text in recipe_files.FOLDERS.values() if not text.endswith(".")] == []
    assert cli.main(["recipes", "arithmetic/miner.yaml"]) == 0
    assert capsys.readouterr().out.startswith((RECIPES / "arithmetic" / "miner.yaml").read_text())
    assert cli.main(["recipes", "arithmtic"]) == 2
    assert (
        "No recipe or folder named 'arithmtic'. Did you mean 'arithmetic'?"
        in capsys.readouterr().err
    )


def test_a_copy_is_complete_and_overwrites_nothing(capsys):
    assert cli.main(["recipes", "--copy", "Qwen3-4B-Base/lora/miner", "Qwen3-14B-Base/miner"]) == 0
    copies = {path.relative_to("recipes") for path in Path("recipes").rglob("*.yaml")}
    needed = {"Qwen3-14B-Base/accelerate/zero3_offload.yaml", "accelerate/ddp.yaml"}
    assert {str(path) for path in copies} == {
        "Qwen3-4B-Base/lora/miner.yaml",
        "Qwen3-14B-Base/miner.yaml",
    } | needed
    assert all(
        Path("recipes", path).read_bytes() == (RECIPES / path).read_bytes() for path in copies
    )
    assert cli.main(["recipes", "--copy", "calculator/grpo"]) == 0
    assert Path("recipes/calculator/calculator.py").is_file()  # the module of its tools
    assert cli.main(["recipes", "--copy", "SmolLM2-135M-Instruct/miner"]) == 0
    assert {path.name for path in Path("recipes/SmolLM2-135M-Instruct").iterdir()} == {
        *("README.md", "from_pypi.py", "miner.yaml")
    }
    Path("recipes/Qwen3-14B-Base/miner.yaml").write_text("mine")
    assert cli.main(["recipes", "--copy", "Qwen3-14B-Base"]) == 2
    assert (
        "recipes/Qwen3-14B-Base/miner.yaml differs from the file that comes with trl_miner."
        in capsys.readouterr().err
    )
    assert not Path("recipes/Qwen3-14B-Base/grpo.yaml").exists()
    assert Path("recipes/Qwen3-14B-Base/miner.yaml").read_text() == "mine"
