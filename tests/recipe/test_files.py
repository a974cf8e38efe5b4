"""The shipped recipes: found by name, listed, copied."""

import pytest

from trl_miner.recipe import files


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "name",
    [
        "arithmetic/quick",
        "arithmetic/quick.yaml",
        "recipes/arithmetic/quick.yaml",
        str(files.shipped()["arithmetic/quick"]),
    ],
)
def test_a_shipped_recipe_is_found(here, name):
    assert files.find(name) == files.shipped()["arithmetic/quick"]


def test_a_file_of_ones_own_goes_first(here):
    own = here / "recipes" / "arithmetic" / "quick.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("seed: 5")
    assert files.find("arithmetic/quick").resolve() == own
    (here / "arithmetic").mkdir()
    nearer = here / "arithmetic" / "quick.yaml"
    nearer.write_text("seed: 6")
    assert files.find("arithmetic/quick").resolve() == nearer


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("arithmetic/quik", "Did you mean 'arithmetic/quick'?"),
        ("aritmetic/quick.yaml", "Did you mean 'arithmetic/quick'?"),
        ("problems.csv", "No recipe or file named 'problems.csv'."),
        ("accelerate/zero3.yaml", "No recipe or file"),  # a file of accelerate's
        ("./nothing", "No recipe or file"),
    ],
)
def test_what_is_neither_a_recipe_nor_a_file(here, name, told):
    with pytest.raises(ValueError) as error:
        files.find(name)
    assert told in str(error.value)


def test_what_is_data(here):
    (here / "problems.csv").write_text("question,answer\n")
    (here / "folder").mkdir()
    for name in ("problems.csv", "folder", "openai/gsm8k", "trl_miner/arithmetic"):
        assert files.find(name) is None


def test_a_folder_or_a_file_is_selected():
    assert files.select("accelerate/zero3.yaml") == ["accelerate/zero3"]
    assert "arithmetic/quick" in files.select("arithmetic/")
    with pytest.raises(ValueError, match="Did you mean 'accelerate'"):
        files.select("acelerate")


def test_a_copy_brings_what_it_needs_and_overwrites_nothing(here):
    name = next(
        name
        for name, path in files.shipped().items()
        if "\naccelerate_config: " in path.read_text()
    )
    to = here / "recipes"
    copies = files.copy_out([name], to)
    assert to / f"{name}.yaml" in copies and all(copy.is_file() for copy in copies)
    assert [copy for copy in copies if copy.parent == to / "accelerate"]
    assert files.find(name) == (to / f"{name}.yaml").relative_to(here)
    assert files.copy_out([name], to) == copies  # the same again
    (to / f"{name}.yaml").write_text("seed: 5")
    with pytest.raises(ValueError, match="differs from the shipped file"):
        files.copy_out(["arithmetic/quick", name], to)
    assert (to / f"{name}.yaml").read_text() == "seed: 5" and not (to / "arithmetic").exists()
