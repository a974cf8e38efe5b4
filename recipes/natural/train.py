"""trl-miner train, which scores the start only if START is set: it is the same for all methods of a seed."""

import os, sys
from trl_miner.cli import main
from trl_miner.evaluation.in_training import EvaluationCallback

scored = EvaluationCallback.on_step_begin


def on_step_begin(self, args, state, control, **kwargs):
    if state.global_step or os.environ.get("START"):
        scored(self, args, state, control, **kwargs)


EvaluationCallback.on_step_begin = on_step_begin
sys.exit(main())
