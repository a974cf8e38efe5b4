"""Names that a user writes: near ones, and objects by import path."""

import subprocess
import sys

import pytest

from trl_miner.common.names import did_you_mean, import_object


def test_a_near_name_is_suggested_and_a_far_one_is_not():
    known = ["arithmetic/quick", "one-gpu/gsm8k"]
    assert did_you_mean("arithmetic/quik", known) == " Did you mean 'arithmetic/quick'?"
    assert did_you_mean("banana", known) == ""
    assert did_you_mean("openai/gsm8k", known, likeness=0.8) == ""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name in ("my_rewards", "broken"):
        sys.modules.pop(name, None)


def test_a_module_of_the_current_folder_is_found_behind_the_installed_ones(here):
    (here / "my_rewards.py").write_text("def short(completions, **kwargs): return [1.0]")
    (here / "colorsys.py").write_text("raise SystemExit('not this one')")
    assert import_object("reward_funcs", "my_rewards.short")([]) == [1.0]
    assert import_object("reward_funcs", "colorsys.rgb_to_hsv")(0, 0, 0) == (0, 0, 0)


@pytest.mark.parametrize(
    ("code", "path", "told"),
    [
        ("", "my_reward.short", "ModuleNotFoundError: No module named 'my_reward'"),
        ("def short(): ...", "my_rewards.shrot", "has no 'shrot'. Did you mean 'short'?"),
        ("1 / 0", "my_rewards.short", "ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)", "my_rewards.short", "SystemExit: 3"),
        ("def short(:", "my_rewards.short", "SyntaxError"),
        ("", "short", "ValueError: Empty module name"),
    ],
)
def test_what_cannot_be_imported_is_told_with_the_setting(here, code, path, told):
    (here / "my_rewards.py").write_text(code)
    with pytest.raises(ValueError, match="^reward_funcs: ") as error:
        import_object("reward_funcs", path)
    assert told in str(error.value)


def test_a_file_of_the_current_folder_replaces_no_module_of_pythons(tmp_path):
    (tmp_path / "json.py").write_text("raise SystemExit('shadowed')")
    words = [sys.executable, "-m", "trl_miner.cli", "recipes", "arithmetic"]
    ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0 and "arithmetic/quick" in ended.stdout
