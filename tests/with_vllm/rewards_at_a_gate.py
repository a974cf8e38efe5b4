"""A reward function that lets a test act at a known place of a run: while the completions of step 1
are scored. The preview of the data, which calls a reward before there are steps, passes the gate."""

import os
import time
from pathlib import Path

from harness import mixed_reward

DEADLINE = 300  # seconds


def reward(prompts, completions, trainer_state, **kwargs):
    if trainer_state.global_step == 0 and trainer_state.max_steps > 0:
        gate = Path(os.environ["GATE"])
        gate.with_suffix(f".{os.environ.get('RANK', 0)}").touch()
        started = time.monotonic()
        while gate.exists() and time.monotonic() - started < DEADLINE:
            time.sleep(0.05)
    return mixed_reward(prompts, completions)
