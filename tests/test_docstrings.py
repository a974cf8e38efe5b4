"""What `help()`, an editor and the site show: settings, examples, and nothing that Markdown eats."""

import ast
import dataclasses
import doctest
import inspect
import re
import runpy
from pathlib import Path

import pytest

from trl_miner import MinerAsyncGRPOConfig, MinerGRPOConfig, MinerGRPOTrainer
from trl_miner.common.setting import setting
from trl_miner.methods import miner
from trl_miner.recipe.parsing import MinerScriptArguments, make_parser
from trl_miner.recipe.setting_groups import GROUPS, grouped
from trl_miner.training import RunTrainer

PACKAGE = Path(__file__).parent.parent / "trl_miner"
WRITTEN_BY = runpy.run_path(str(PACKAGE.parent / ".ci" / "settings.py"))
as_args, settings_page = WRITTEN_BY["as_args"], WRITTEN_BY["settings_page"]
CLASSES = (MinerGRPOConfig, RunTrainer._config, MinerAsyncGRPOConfig)
SETTINGS = {
    each.name: each
    for group in grouped(RunTrainer._config, MinerScriptArguments).values()
    for each in group
}


@pytest.mark.parametrize("kind", CLASSES)
def test_a_configuration_class_shows_its_settings(kind):
    """With `python .ci/settings.py`, which writes them."""
    own = [name for name in kind.__annotations__ if name in SETTINGS]
    shown = inspect.getdoc(kind)
    assert own and shown.endswith(as_args(kind).rstrip())
    assert [name for name in own if f"\n    {name} (`" not in shown] == []


def test_the_types_that_are_shown_do_not_depend_on_a_parser():
    """transformers' parser writes other types into the fields."""
    page = settings_page()
    make_parser()
    assert settings_page() == page and "*`str | None`, default `None`*" in page


def test_every_setting_is_in_one_group_and_on_the_page_of_settings():
    names = " ".join(GROUPS.values()).split()
    assert len(names) == len(set(names)) and set(names) == set(SETTINGS)
    page = settings_page()
    assert re.findall(r"^### `(.*)`$", page, re.MULTILINE) == names
    assert "### `miner_gamma`\n\n*`float`, default `2.0`, at least 0*\n\nHow strongly" in page
    assert '*`str`, default `"nll"`, one of `nll`, `certainty`, `constant`*' in page


@pytest.mark.parametrize("name", SETTINGS)
def test_a_description_is_whole_sentences_in_the_words_of_the_glossary(name):
    text = SETTINGS[name].metadata["help"]
    assert re.match(r"[A-Z`0-9]", text) and text.endswith(".")
    prose = re.sub(r"`[^`]*`", "", text)
    assert not re.search(r"\b(golds?|rollouts?|samples|PH|HE|NH)\b", prose)


def test_a_setting_without_a_group_is_an_error():
    @dataclasses.dataclass
    class Config:
        new: int = setting(0, "New.")

    with pytest.raises(ValueError, match="must have all settings: new is in no group"):
        grouped(Config)


def test_the_examples_run(tmp_path, monkeypatch):
    assert doctest.testmod(miner).attempted == 5 and not doctest.testmod(miner).failed
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", inspect.getdoc(MinerGRPOTrainer), re.DOTALL)
    scope = {}
    exec(example, scope)
    assert scope["trainer"].state.global_step == 2


def docstrings():
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                if text := ast.get_docstring(node):
                    where = f"{path.relative_to(PACKAGE)}: {getattr(node, 'name', 'module')}"
                    yield where, text


def test_no_docstring_has_brackets_of_another_builder_or_text_that_is_taken_for_html():
    for where, text in docstrings():
        lines = [line for line in text.splitlines() if not line.strip().startswith((">>>", "..."))]
        prose = re.sub(r"```.*?```|`[^`]*`", "", "\n".join(lines), flags=re.DOTALL)
        assert not re.search(r"\[`[^`]*`\]", text), where
        assert not re.search(r"<(?=[a-zA-Z/|])", prose), where
