"""Lets a training shard its weights on a CPU. Python imports this file at its start where its
folder is on PYTHONPATH, so that the unchanged `trl_miner.train` runs with it."""

import sys

if "trl_miner.train" in sys.orig_argv:
    from sharding.on_a_cpu import shard_on_a_cpu

    shard_on_a_cpu()
