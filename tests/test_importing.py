"""What a setting names by its import path: from an installed package, else from the current
folder."""

import json
import subprocess
import sys

import pytest

from trl_miner.common.importing import import_object
from trl_miner.launching.local import STARTER


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A current folder with files that are called as packages are."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # which the search changes
    for name in ("json", "trl", "torch", "yaml", "accelerate", "wandb"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('shadowed')\n")
    return tmp_path


def test_a_file_of_the_current_folder_is_found_and_shadows_no_package(here):
    (here / "rewards_of_here.py").write_text(
        "def mine(completions, **kwargs):\n    return [1.0] * len(completions)\n"
    )
    assert import_object("reward_funcs", "rewards_of_here.mine")([0, 0]) == [1.0, 1.0]
    assert import_object("reward_funcs", "json.dumps") is json.dumps and sys.path[-1] == str(here)
    with pytest.raises(ValueError, match=r"'json' \(.*json/__init__.py\) has no attribute 'mine'"):
        import_object("reward_funcs", "json.mine")
    (here / "broken_rewards.py").write_text("import math\nmath.no_such_function\n")
    with pytest.raises(
        ValueError, match="'broken_rewards.mine' could not be imported from .*no_such_function"
    ):
        import_object("reward_funcs", "broken_rewards.mine")


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import sys\nsys.exit('no data')", r"sys.exit\(no data\) in code_of_mine.py, line 2"),
        ("def mine(:", "SyntaxError: .* in .*code_of_mine.py, line 1"),
        ("1 / 0", "ZeroDivisionError: division by zero in code_of_mine.py, line 1"),
    ],
)
def test_a_module_that_fails_is_told_with_its_line(here, code, says):
    (here / "code_of_mine.py").write_text(code)
    with pytest.raises(ValueError, match=f"'code_of_mine.mine' could not be imported .*{says}"):
        import_object("reward_funcs", "code_of_mine.mine")


@pytest.mark.slow
@pytest.mark.parametrize("start", [STARTER, (sys.executable, "-m", "trl_miner.train")])
def test_a_training_that_starts_here_uses_the_installed_packages(start, here):
    done = subprocess.run([*start, "--lerning_rate", "1"], capture_output=True, text=True)
    assert (
        done.returncode == 2
        and "trl-miner train: error: " in done.stderr
        and "shadowed" not in done.stderr
    )
