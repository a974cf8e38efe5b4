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

from trl_miner import cli
from trl_miner.commands import compare, data, doctor, evaluate, launch, push, recipes, report, score, sft, train
from trl_miner.commands import inspect as inspect_command
from trl_miner.recipe import make_parser

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in ROOT.glob("trl_miner/**/*.py")
)


def own_names(module):
    """Public classes and functions of a module; the types of records, which a function makes, are not among them."""
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
    pages = "".join(path.read_text(encoding="utf-8") for path in tmp_path.glob("reference/*/index.html"))
    names = [
        f"{module}.{name}"
        for module in MODULES
        if ".commands." not in module
        for name in own_names(importlib.import_module(module))
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

# Which test or stage of .ci/run executes each command in the README, the guides, CONTRIBUTING.md, recipes/README.md
# and the text of the notebooks, by how the command begins. The code of the notebooks runs in a stage of its own.
EXECUTED_BY = {
    r"git clone|cd trl_miner": ".ci/run everything",
    r"pip install -e \.$": ".ci/run everything",
    r'pip install -e "\.\[test\]"$': ".ci/run everything",
    r'pip install -e "\.\[vllm,deepspeed\]"$': ".ci/run vllm_environment",  # vLLM's CPU build; CUDA's needs a GPU
    r"pytest( tests/.*)?$": ".ci/run fast",
    r"\.ci/run( \w+)*$": ".ci/run everything",
    r"trl-miner sft": "tests/test_sft.py::test_the_start_is_where_the_recipe_looks_for_its_model",
    r"trl-miner train problems.csv": (
        "tests/test_data_recipe.py::test_the_recipe_trains_and_scores_what_it_holds_out"
    ),
    r"trl-miner train asynchronous/": (
        "tests/test_asynchronous.py::test_a_worker_of_its_own_samples_and_a_run_goes_on_from_a_checkpoint"
    ),
    r"trl-miner train (--config recipes/)?arithmetic/": (
        "tests/test_train.py::test_the_readmes_run_leaves_what_it_promises"
    ),
    r"trl-miner train --config my_recipe.yaml": (
        "tests/test_own_data.py::test_a_run_trains_on_gsm8ks_rows_and_is_evaluated_with_its_prompt"
    ),
    r"trl-miner train --config recipe.yaml --num_processes": (
        "tests/test_errors.py::test_a_command_line_is_split_between_the_training_and_the_launcher"
    ),
    r"accelerate launch .*-m trl_miner.train": "tests/test_accelerate.py",
    r"trl-miner doctor": "tests/test_recipes.py::test_doctor_passes_a_model_s_recipes_on_the_machine_that_they_name",
    r"trl-miner launch": "tests/test_documentation.py::test_a_launch_that_is_shown_can_be_planned",
    r"sbatch .*recipes/slurm/train.slurm": (
        "tests/test_launch_processes.py::test_the_slurm_script_starts_each_side_on_its_nodes"
    ),
    r"trl-miner data deepscaler": "tests/test_data_command.py::test_a_rewritten_folder_is_read_anew",
    r"trl-miner data medical": (
        "tests/test_data_command.py::test_medical_drops_what_the_model_answers_and_goes_on_after_a_kill"
    ),
    r"trl-miner eval": "tests/test_generate.py::test_every_benchmark_of_the_table_goes_from_file_to_scores",
    r"trl-miner score": ".ci/run notebooks",
    r"python recipes/study/strategies.py": "tests/test_study.py::test_strategies_are_counted_by_level",
    r"trl-miner compare": "tests/test_compare.py::test_the_numbers_come_from_the_runs",
    r"trl-miner recipes": "tests/test_recipe_files.py::test_a_copy_is_complete_and_overwrites_nothing",
    r"trl-miner push": "tests/test_hub.py::test_what_arrives_is_what_the_dry_run_wrote_and_no_more",
    r"trl-miner report": "tests/test_report.py::test_a_report_says_what_it_wrote_and_what_comes_next",
    r"trl-miner inspect": "tests/test_inspect.py::test_the_command_says_what_it_wrote_and_a_page_what_it_leaves_out",
}
TEXTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "recipes/README.md", "recipes/study/README.md")]
TEXTS += sorted((ROOT / "trl_miner").glob("*/*.md"))


def cells_of(notebook, kind):
    return ["".join(cell["source"]) for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == kind]


def shown_commands():
    """Every command in a block for a shell."""
    texts = [path.read_text() for path in TEXTS]
    texts += [cell for notebook in NOTEBOOKS for cell in cells_of(notebook, "markdown")]
    for name in MODULES:
        texts.append(importlib.import_module(name).__doc__ or "")
    blocks = [block for text in texts for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL)]
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    commands = [part.strip() for line in lines for part in re.sub(r"\s+#.*", "", line).split("&&")]
    return sorted({re.sub(r"\s+", " ", command) for command in commands if command})


def inline_commands():
    """Every `trl-miner ...` with an argument in running text and docstrings, and those in the recipes' first lines."""
    texts = [path.read_text() for path in TEXTS] + [importlib.import_module(name).__doc__ or "" for name in MODULES]
    found = [command for text in texts for command in re.findall(r"`(trl-miner [a-z]+ [^`]+)`", text)]
    for path in (ROOT / "recipes").rglob("*.yaml"):
        header = re.sub(r"\\\n#", "", path.read_text())
        found += re.findall(r"^# +(trl-miner .*)$", header, re.MULTILINE)
    return sorted({re.sub(r"\s+", " ", command) for command in found})


@pytest.mark.parametrize("command", shown_commands())
def test_every_command_is_executed_somewhere(command):
    ways = [way for pattern, way in EXECUTED_BY.items() if re.match(pattern, command)]
    assert ways, f"{command}: EXECUTED_BY must say which test or stage executes it"


@pytest.mark.parametrize("way", sorted(set(EXECUTED_BY.values())))
def test_what_executes_a_command_is_there(way):
    file, _, test = way.replace(" ", "::").partition("::")
    assert (
        re.search(rf"^(def )?{test}\(", (ROOT / file).read_text(), re.MULTILINE) if test else (ROOT / file).is_file()
    )


@pytest.fixture
def parsed(monkeypatch):
    """Parses a command with the real parser, and runs nothing."""
    calls = []
    for module in (compare, doctor, evaluate, inspect_command, launch, push, recipes, report, score, sft, train):
        monkeypatch.setattr(module, "run", lambda args, rest: calls.append((args, rest)) or 0)
    for name in ("run_deepscaler", "run_medical"):
        monkeypatch.setattr(data, name, lambda args, rest: calls.append((args, rest)) or 0)

    def parse(command):
        assert cli.main(shlex.split(command)[1:]) == 0
        return calls[-1]

    return parse


TRL_MINER = [command for command in {*shown_commands(), *inline_commands()} if command.startswith("trl-miner")]


@pytest.mark.parametrize("command", sorted(TRL_MINER))
def test_every_option_that_is_shown_is_there(parsed, command):
    """Those that a command hands on are options of the training or of accelerate's launcher."""
    from accelerate.commands.launch import launch_command_parser

    if "--help" in command or "COMMAND" in command:
        return
    _, rest = parsed(re.sub(r"\b(N|R|PORT)\b", "1", command))
    known = {option for parser in (make_parser(), launch_command_parser()) for option in parser._option_string_actions}
    assert {word for word in rest if word.startswith("--")} <= known | {"--config", "--model", "--save-recipe"}


@pytest.mark.parametrize("command", [one for one in shown_commands() if one.startswith("trl-miner launch")])
def test_a_launch_that_is_shown_can_be_planned(command, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert cli.main([*shlex.split(command)[1:], "--dry-run", "--num_gpus", "8"]) == 0
    assert "trl_miner.launching.local" in capsys.readouterr().out


# --- Notebooks


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_small_and_was_run_from_the_top_without_trouble(notebook):
    text = notebook.read_text()
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert len(text) < 300_000 and outputs
    assert not [output for output in outputs if output["output_type"] == "error"]
    shown = json.dumps([output for output in outputs if "data" not in output or "image/png" not in output["data"]])
    assert not re.search(r"/(home|root|tmp|Users|work)/|Traceback|Warning", shown)
