"""What `--help` says: every command and option, in whole sentences, with the defaults that hold."""

import argparse
import re
from pathlib import Path

import pytest

from trl_miner import cli, commands
from trl_miner.commands.train import USAGE
from trl_miner.methods import METHODS
from trl_miner.recipe.parsing import make_parser
from trl_miner.recipe.setting_groups import GROUPS


def printed(words, capsys):
    try:
        assert cli.main(words) == 0
    except SystemExit as ended:
        assert ended.code == 0
    return capsys.readouterr().out


def all_parsers():
    """The parser of each command, and of each part of one."""
    _, action = cli._parser()
    waiting = [*action.choices.items()]
    while waiting:
        name, parser = waiting.pop()
        yield name, parser
        parts = parser._subparsers._group_actions if parser._subparsers else []
        waiting += [(f"{name} {part}", own) for each in parts for part, own in each.choices.items()]


PARSERS = dict(all_parsers())


def test_there_is_one_list_of_commands_and_the_help_shows_it_by_group(capsys):
    modules = {path.stem for path in Path(commands.__file__).parent.glob("*.py")} - {"__init__"}
    assert {module.__name__.rpartition(".")[2] for module in commands.modules().values()} == modules
    shown = printed(["--help"], capsys)
    assert "Start here: trl-miner train arithmetic/quick" in shown
    titles = re.findall(r"^(\w+):$", shown, re.MULTILINE)
    assert titles[:5] == [*commands.GROUPS] == ["Train", "Evaluate", "Look", "Share", "Data"]
    rows = re.findall(r"^    (\w+) +([A-Z].*[.?])$", shown, re.MULTILINE)
    assert [name for name, _ in rows] == [*commands.modules()]
    assert max(map(len, shown.splitlines())) <= 110
    assert cli.main([]) == 2 and capsys.readouterr().out == shown


@pytest.mark.parametrize("name", PARSERS)
def test_every_option_is_described_in_a_whole_sentence(name):
    skipped = (argparse._HelpAction, argparse._SubParsersAction)
    for action in PARSERS[name]._actions:
        if not isinstance(action, skipped):
            assert re.match(r"[A-Z].*[.)]$", action.help or "", re.DOTALL), action.dest
            assert not re.search(r"\bgolds?\b|\bfound\b \(", action.help), action.dest


def test_the_short_help_of_train_has_the_defaults_that_hold(capsys):
    shown = printed(["train", "--help"], capsys)
    assert shown == USAGE and len(shown.splitlines()) < 50
    lines = re.findall(r"^  --(\w+) .*?([A-Z].*)$", shown, re.MULTILINE)
    names = [name for name, _ in lines][:15]
    assert len(set(names)) == 15
    defaults = {action.dest: action.default for action in reversed(make_parser()._actions)}
    defaults["model"] = defaults["model_name_or_path"]
    for name, text in lines[:15]:
        assert name in defaults and text.endswith("."), name
        if default := re.search(r"\(default: ([-\w.]+)[,;)]", text):
            stated = {"no": "None"}.get(default[1], default[1])
            known = "trainer_output" if name == "output_dir" else str(defaults[name])
            assert stated == known, name


def test_the_long_help_of_train_has_every_setting_once_and_ours_first(capsys):
    shown = printed(["train", "--help", "all"], capsys)
    options = re.findall(r"^  --(\w+)", shown, re.MULTILINE)
    ours = " ".join(GROUPS.values()).split()
    assert options[: len(ours)] == ours and len(options) == len(set(options)) > 250
    known = {action.dest for action in make_parser()._actions} - {"help"}
    assert set(options) == known and len(shown.splitlines()) < 1300
    titles = re.findall(r"^(\w.*):$", shown, re.MULTILINE)
    assert titles == [*GROUPS, "Settings of TRL and transformers"]


def test_the_help_on_methods_has_each_one_with_its_parameters(capsys):
    shown = printed(["train", "--help", "methods"], capsys)
    others = {"gspo", "dynamic_sampling", "reinforce_ada"}  # settings of their own
    assert set(re.findall(r"^  (\w+) +[A-Z]", shown, re.MULTILINE)) == METHODS.keys() - others
    assert "rl_zvp                RL-ZVP, arXiv 2509.21880: alpha=0.1" in shown
    assert "--importance_sampling_level sequence (GSPO)" in shown


def test_another_topic_is_refused_and_a_recipe_before_it_is_none(capsys):
    assert cli.main(["train", "--help", "settings"]) == 2
    assert "No help on 'settings'. The topics are `--help all`" in capsys.readouterr().err
    assert printed(["train", "arithmetic/quick", "--help"], capsys) == USAGE
    assert printed(["train", "--help", "--quiet"], capsys) == USAGE
