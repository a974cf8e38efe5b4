"""mypy knows what the trainer, its settings and TRL's trainer have: a misspelling is an error."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import trl_miner

pytestmark = pytest.mark.slow

ROOT = Path(trl_miner.__file__).parent.parent
# file, what stands there, what is misspelt
PLANTED = [
    ("trainer.py", "args.max_tokens_per_micro_batch", "args.max_token_per_micro_batch"),
    ("trainer.py", "self.verifier.rewards(", "self.verifier.reward("),
    ("trainer.py", "self._step >= self.planned_until", "self._step >= self.planned_untill"),
    ("trainer.py", "self.reward_func_names\n", "self.reward_function_names\n"),
    ("trainer.py", "self.state.global_step + 1", "self.state.global_steps + 1"),
    ("compact_step.py", "trainer.cutting.cut(", "trainer.cutter.cut("),
    ("compact_step.py", "trainer.loss_type in", "trainer.loss_types in"),
    ("old_logps.py", "trainer.temperature", "trainer.temperatur"),
    ("resume.py", "trainer._step,", "trainer._steps,"),
    ("dynamic_sampling.py", "trainer.generate_and_reward(", "trainer.generate_and_rewards("),
    ("policy_loss.py", "trainer.epsilon_low", "trainer.epsilon_lo"),
]


def test_what_is_misspelt_is_found(tmp_path):
    shutil.copytree(
        ROOT / "trl_miner", tmp_path / "trl_miner", ignore=shutil.ignore_patterns("base_models")
    )
    shutil.copy(ROOT / "setup.cfg", tmp_path)
    words = set()
    for name, right, wrong in PLANTED:
        path = tmp_path / "trl_miner" / "trainer" / name
        text = path.read_text()
        assert right in text, right
        path.write_text(text.replace(right, wrong, 1))
        words |= {*re.findall(r"\w+", wrong)} - {*re.findall(r"\w+", right)}
    command = [sys.executable, "-m", "mypy", "--config-file", "setup.cfg", "trl_miner/trainer"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=500)
    missed = [word for word in words if f'"{word}"' not in done.stdout]
    assert not missed, done.stdout[-3000:]
