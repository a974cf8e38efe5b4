"""The documentation is current and true: pages, commands, notebooks."""

import importlib
import inspect
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from accelerate.commands.launch import _validate_launch_command, launch_command_parser

from trl_miner import cli
from trl_miner.commands import (
    ask,
    compare,
    data,
    doctor,
    evaluate,
    launch,
    probe,
    push,
    recipes,
    report,
    score,
    sft,
    train,
    verify,
    watch,
)
from trl_miner.commands import inspect as inspect_command
from trl_miner.launching.plan import make_plan
from trl_miner.recipe import make_parser

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in ROOT.glob("trl_miner/**/*.py")
)


def own_names(module):
    """Public classes and functions of a module; the types of records, which a function makes, are
    not among them."""
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isfunction(value) or inspect.isclass(value))
        and (value.__module__, value.__name__) == (module.__name__, name)
        and name in getattr(module, "__all__", [name])
    }


# --- The pages


@pytest.mark.slow
def test_the_site_has_every_public_name_the_readme_and_the_commands(tmp_path):
    """It is built strictly: a link that leads nowhere would be an error."""
    subprocess.run([sys.executable, ROOT / ".ci" / "docs.py", tmp_path], check=True)
    pages = "".join(
        path.read_text(encoding="utf-8") for path in tmp_path.glob("reference/*/index.html")
    )
    modules = [importlib.import_module(name) for name in MODULES if ".commands." not in name]
    names = [
        f"{module.__name__}.{name}"
        for module in modules
        if Path(module.__file__).is_relative_to(ROOT / "trl_miner")  # a world is of the recipes
        for name in own_names(module)
    ]
    assert not [name for name in names if f'id="{name}"' not in pages]
    first = (tmp_path / "index.html").read_text(encoding="utf-8")
    pictures = re.findall(r'src="(recipes/[^":]+)"', first)
    assert pictures and all((tmp_path / picture).is_file() for picture in pictures)
    commands = (tmp_path / "commands" / "index.html").read_text(encoding="utf-8")
    assert "trl-miner eval" in commands and "--advantage_estimator" in commands


def test_the_index_of_the_recipes_names_every_folder():
    text = (ROOT / "recipes" / "README.md").read_text()
    assert not [path.name for path in (ROOT / "recipes").glob("*/") if path.name not in text]


# --- Commands

TEXTS = [
    ROOT / name
    for name in (
        *("README.md", "CONTRIBUTING.md", "AGENTS.md"),
        *("recipes/README.md", "recipes/study/README.md"),
    )
]
TEXTS += sorted((ROOT / "trl_miner").glob("*/*.md"))


def cells_of(notebook, kind):
    return [
        "".join(cell["source"])
        for cell in json.loads(notebook.read_text())["cells"]
        if cell["cell_type"] == kind
    ]


def shown_commands():
    """Every command in a block for a shell."""
    texts = [path.read_text() for path in TEXTS]
    texts += [cell for notebook in NOTEBOOKS for cell in cells_of(notebook, "markdown")]
    for name in MODULES:
        texts.append(importlib.import_module(name).__doc__ or "")
    blocks = [
        block for text in texts for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    ]
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    commands = [part.strip() for line in lines for part in re.sub(r"\s+#.*", "", line).split("&&")]
    return sorted({re.sub(r"\s+", " ", command) for command in commands if command})


def inline_commands():
    """Every `trl-miner ...` with an argument in running text and docstrings, and those in the
    recipes' first lines."""
    texts = [path.read_text() for path in TEXTS] + [
        importlib.import_module(name).__doc__ or "" for name in MODULES
    ]
    found = [
        command for text in texts for command in re.findall(r"`(trl-miner [a-z]+ [^`]+)`", text)
    ]
    for path in (ROOT / "recipes").rglob("*.yaml"):
        header = re.sub(r"\\\n#", "", path.read_text())
        found += re.findall(r"^# +(trl-miner .*)$", header, re.MULTILINE)
    return sorted({re.sub(r"\s+", " ", command) for command in found})


@pytest.fixture
def parsed(monkeypatch):
    """Parses a command with the real parser, and runs nothing."""
    calls = []
    for module in (
        ask,
        compare,
        data,
        doctor,
        evaluate,
        inspect_command,
        launch,
        probe,
        push,
        recipes,
        report,
        score,
        sft,
        train,
        verify,
        watch,
    ):
        monkeypatch.setattr(module, "run", lambda args, rest: calls.append((args, rest)) or 0)
    monkeypatch.setattr(data, "show", lambda args, rest: calls.append((args, rest)) or 0)

    def parse(command):
        assert cli.main(shlex.split(command)[1:]) == 0, command
        return calls[-1]

    return parse


TRL_MINER = [
    command
    for command in {*shown_commands(), *inline_commands()}
    if command.startswith("trl-miner")
]


def test_every_option_that_is_shown_is_there(parsed):
    """Those that a command hands on are options of the training or of accelerate's launcher."""
    known = {
        option
        for parser in (make_parser(), launch_command_parser())
        for option in parser._option_string_actions
    }
    known |= {"--config", "--model"}
    for command in TRL_MINER:
        if "--help" not in command and "COMMAND" not in command:
            _, rest = parsed(re.sub(r"\b(N|R|PORT)\b", "1", command))
            assert {word for word in rest if word.startswith("--")} <= known, command


@pytest.mark.parametrize(
    "command", [one for one in shown_commands() if one.startswith("trl-miner launch")]
)
def test_a_launch_that_is_shown_can_be_planned(command, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert cli.main([*shlex.split(command)[1:], "--dry-run", "--num_gpus", "8"]) == 0
    program = "vllm.entrypoints" if "--only server" in command else "trl_miner.launching.local"
    assert program in capsys.readouterr().out


def test_accelerate_takes_its_launcher_as_shown_and_trains_the_recipe(monkeypatch):
    """Up to the start of the processes; tests/test_accelerate.py trains on two."""
    monkeypatch.chdir(ROOT)
    (command,) = (one for one in shown_commands() if "accelerate launch" in one)
    words = shlex.split(command)
    gpus = words.pop(0).removeprefix("CUDA_VISIBLE_DEVICES=").split(",")
    assert words[:2] == ["accelerate", "launch"]
    launched, *_ = _validate_launch_command(launch_command_parser().parse_args(words[2:]))
    assert launched.use_deepspeed and launched.zero_stage == 3
    assert launched.num_processes == len(gpus) == 2
    assert (launched.module, launched.training_script) == (True, "trl_miner.train")
    option, recipe = launched.training_script_args  # tests/test_recipes.py parses all recipes
    plan = make_plan(recipe, num_gpus=4)
    assert option == "--config"
    # what trl-miner launch does on four GPUs
    assert (plan.num_processes, plan.train_gpus) == (2, (2, 3))
    assert Path(plan.settings.accelerate_config).name == "zero3.yaml"


# --- Notebooks


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_small_and_was_run_from_the_top_without_trouble(notebook):
    text = notebook.read_text()
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert len(text) < 300_000 and outputs
    assert not [output for output in outputs if output["output_type"] == "error"]
    shown = json.dumps(
        [output for output in outputs if "data" not in output or "image/png" not in output["data"]]
    )
    assert not re.search(r"/(home|root|tmp|Users|work)/|Traceback|Warning", shown)
