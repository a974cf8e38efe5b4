"""The commands of `trl-miner`, one module each: `add` declares it, `run` does it. Importing them is quick."""
