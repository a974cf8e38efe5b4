"""The documentation is current and true: pages, commands, notebooks."""

import ast
import functools
import importlib
import inspect
import json
import re
import runpy
import shlex
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest
from accelerate.commands.launch import _validate_launch_command, launch_command_parser

import trl_miner
from trl_miner import MinerGRPOConfig, cli, commands
from trl_miner.launching.plan import make_plan
from trl_miner.methods import METHODS
from trl_miner.recipe.parsing import make_parser
from trl_miner.rewards import math_reward

ROOT = Path(__file__).parent.parent
COMMANDS = commands.modules()
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in ROOT.glob("trl_miner/**/*.py")
)


# --- The pages

SOURCE = ROOT / "docs" / "source"
docs = runpy.run_path(str(ROOT / ".ci" / "docs.py"))
TRACKED = [
    ROOT / name
    for name in subprocess.run(
        ["git", "ls-files", "-z", "*.md", "*.ipynb"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split("\0")
    if name and (ROOT / name).is_file()
]  # fmt: skip
IN_THE_CONTENTS = [
    SOURCE / f"{page['local']}.md" for section in docs["contents"]() for page in section["sections"]
] + [ROOT / page for pages in docs["ELSEWHERE"].values() for page in pages]
# Pages that others link to, what forges and tests read, and the card of a folder of recipes.
NOT_IN_THE_CONTENTS = (
    *("README.md", "SECURITY.md", ".github/*"),
    *("recipes/*/tables.md", "recipes/*/protocol.md", "recipes/*/both_sides.md"),
    *("recipes/*/notes.md", "recipes/*/results/*.md", "tests/*"),
)
PAGES = [path for path in TRACKED if path.suffix == ".md" and "golden" not in path.parts]


def test_every_page_is_in_the_table_of_contents_or_left_out_by_name():
    assert all(path.is_file() for path in IN_THE_CONTENTS)
    assert len(IN_THE_CONTENTS) == len({*IN_THE_CONTENTS})
    names = [path.relative_to(ROOT).as_posix() for path in {*TRACKED} - {*IN_THE_CONTENTS}]
    assert not [
        name for name in names if not any(fnmatch(name, left) for left in NOT_IN_THE_CONTENTS)
    ]


def anchors_of(page):
    """The anchors of the headings of a page, as GitHub and mkdocs make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    shown = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in shown}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(page):
    links = re.findall(r"\]\((?![a-z]+:)([^)\s#]*)(?:#([^)\s]*))?\)", page.read_text())
    for path, anchor in links:
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), path
        if anchor and target.suffix == ".md":
            assert anchor in anchors_of(target), f"{path}#{anchor}"


OTHER_WORDS = re.compile(
    r"\b(golds?|ground truths?|rollouts?(?! of verl)|doses?|PH|HE|NH|homogeneous)\b"
)


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted(SOURCE.rglob("*.md"))], ids=lambda path: path.name
)
def test_a_page_has_one_word_for_one_thing(page):
    """That of the glossary, which names the others; code has names of its own."""
    prose = re.sub(
        r"^```.*?^```|`[^`]+`|\]\([^)]*\)|^\[\[.*?$",
        "",
        page.read_text(),
        flags=re.DOTALL | re.MULTILINE,
    )
    assert page.name == "glossary.md" or not OTHER_WORDS.findall(prose)


def test_every_setting_is_on_the_settings_page_as_it_is():
    """Written there by `python .ci/settings.py`, which refuses a setting without a group."""
    settings = runpy.run_path(str(ROOT / ".ci" / "settings.py"))
    (shown,) = settings["MARKED"].findall(settings["PAGE"].read_text())
    assert shown == settings["settings_page"]() and shown.count("### `") > 50


def test_every_command_is_on_the_page_of_commands():
    text = (SOURCE / "reference" / "cli.md").read_text()
    assert {*re.findall(r"^\| `trl-miner (\w+)`", text, re.MULTILINE)} == {*COMMANDS}


def test_every_public_name_is_on_a_page_of_the_reference():
    pages = (SOURCE / "reference" / name for name in ("trainers.md", "functions.md"))
    named = re.findall(
        r"^\[\[autodoc\]\] (\S+)$", "".join(map(Path.read_text, pages)), re.MULTILINE
    )
    assert {*trl_miner.__all__} - {"__version__"} <= {*named}
    for name in named:
        module, _, attribute = f"trl_miner.{name}".rpartition(".")
        assert inspect.getdoc(getattr(importlib.import_module(module), attribute)), name


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_page_imports_is_there(page):
    for code in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("trl"):
                module = importlib.import_module(node.module)
                assert not [name.name for name in node.names if not hasattr(module, name.name)]


@pytest.mark.parametrize("page", ["concepts/method.md", "howto/rewards.md"])
def test_the_examples_of_a_page_run(page):
    scope: dict = {}
    for code in re.findall(r"```python\n(.*?)```", (SOURCE / page).read_text(), re.DOTALL):
        exec(code, scope)


def test_the_examples_of_the_grading_rules_are_graded_so():
    text = (SOURCE / "reference" / "grading_rules.md").read_text()
    section = text.split("## Mathematics\n")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    for reward, column in ((1.0, 2), (0.0, 3)):
        cells = "; ".join(row[column] for row in rows[2:] if column < len(row))
        pairs = re.findall(r"`([^`]+)` and `([^`]+)`", cells)
        answers, references = zip(*pairs, strict=True)
        found = math_reward([rf"\boxed{{{answer}}}" for answer in answers], [*references])
        assert (
            len(pairs) > 10
            and [pair for pair, score in zip(pairs, found, strict=True) if score != reward] == []
        )


PAPERS = (SOURCE / "reference" / "paper_index.md").read_text()


def test_every_paper_of_a_method_is_in_the_paper_index():
    assert not {one.arxiv for one in METHODS.values() if one.arxiv} - {
        *re.findall(r"huggingface.co/papers/(\S+)", PAPERS)
    }


@pytest.mark.parametrize("code", re.findall(r"```python\n(training_args.*?)```", PAPERS, re.DOTALL))
def test_the_settings_of_a_paper_are_accepted(code, tmp_path):
    on_cpu = dict(output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to="none")
    on_cpu |= dict(per_device_train_batch_size=16)
    exec(code, {"MinerGRPOConfig": functools.partial(MinerGRPOConfig, **on_cpu)})


@pytest.mark.slow
def test_the_site_has_all_pages_and_the_help_of_the_commands(tmp_path):
    """It is built strictly: a link that leads nowhere would be an error."""
    subprocess.run([sys.executable, ROOT / ".ci" / "docs.py", tmp_path], check=True)
    for page in IN_THE_CONTENTS:
        built = tmp_path / docs["place_of"](page).with_suffix(".html")
        assert built.is_file() or built.with_name("index.html").is_file(), page
    first = (tmp_path / "index.html").read_text(encoding="utf-8")
    pictures = re.findall(r'<img[^>]*src="([^":]+)"', first)
    assert pictures and all((tmp_path / picture).is_file() for picture in pictures)
    commands = (tmp_path / "reference" / "cli.html").read_text(encoding="utf-8")
    assert "trl-miner eval" in commands and "--advantage_estimator" in commands
    trainers = (tmp_path / "reference" / "trainers.html").read_text(encoding="utf-8")
    assert 'id="trl_miner.MinerGRPOTrainer"' in trainers and "[[autodoc]]" not in trainers
    assert "hfoption" not in (tmp_path / "quickstart.html").read_text(encoding="utf-8")


def test_the_index_of_the_recipes_names_every_folder():
    text = (ROOT / "recipes" / "README.md").read_text()
    assert not [path.name for path in (ROOT / "recipes").glob("*/") if path.name not in text]


# --- Commands

TEXTS = [
    path
    for path in TRACKED
    if path.suffix == ".md" and not {"tests", ".github"} & {*path.relative_to(ROOT).parts}
]


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
    for module in COMMANDS.values():
        monkeypatch.setattr(module, "run", lambda args, rest: calls.append((args, rest)) or 0)
    monkeypatch.setattr(
        COMMANDS["data"], "show", lambda args, rest: calls.append((args, rest)) or 0
    )

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
