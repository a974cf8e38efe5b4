"""Runs `trl-miner eval` for each line of its input, a list of arguments in JSON, and answers with
the exit code.

Run by test_generation.py: importing vLLM and starting an engine take longer than all evaluations
together.
"""

import contextlib
import functools
import json
import os
import sys

import vllm

from trl_miner.cli import main


@functools.cache
def engine(model, revision, dtype, **settings):
    return LLM(model, revision=revision, dtype=dtype, **settings)


LLM, vllm.LLM = vllm.LLM, engine

if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    with contextlib.redirect_stdout(sys.stderr):
        for line in sys.stdin:
            print(main(["eval", *json.loads(line)]), file=answers, flush=True)
