"""mypy knows what the trainer, its settings and its collaborators have: a misspelling is an error."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# In a file of the trainer, what is read, and how it is misspelt.
PLANTED = {
    "trainer/trainer.py": ("self.optimizer_step.reset()", "self.optimiser_step.reset()"),
    "trainer/base.py": ("self.args.gate_on_correctness", "self.args.gate_on_corectness"),
    "trainer/scoring.py": ("temperature=trainer.temperature", "temperature=trainer.temprature"),
    "trainer/step.py": ("trainer._buffered_inputs", "trainer._buffred_inputs"),
    "trainer/gradient_share.py": ("args.log_gradient_share\n", "args.log_gradient_shares\n"),
    "trainer/round_sampling.py": ("trainer.reward_weights", "trainer.reward_weigths"),
    "trainer/policy_loss.py": ("trainer.state.", "trainer.stat."),
    "trainer/row_layout.py": ("trainer.aux_loss_enabled", "trainer.aux_los_enabled"),
    "trainer/outcomes.py": ("method.reads_past", "method.reads_the_past"),
    "training/run_trainer.py": ("self._checkpoints.prepare", "self._checkpoint.prepare"),
}


@pytest.mark.slow
def test_what_is_misspelt_is_found(tmp_path):
    shutil.copytree(ROOT / "trl_miner", tmp_path / "trl_miner")
    shutil.copy(ROOT / "setup.cfg", tmp_path)
    for name, (right, wrong) in PLANTED.items():
        path = tmp_path / "trl_miner" / name
        text = path.read_text()
        assert right in text, name
        path.write_text(text.replace(right, wrong, 1))
    done = subprocess.run(
        [sys.executable, "-m", "mypy"], cwd=tmp_path, capture_output=True, text=True
    )
    found = set(
        re.findall(r"^trl_miner/([\w/]+\.py):\d+: error: .*has no attribute", done.stdout, re.M)
    )
    assert found == PLANTED.keys(), done.stdout[-3000:]
