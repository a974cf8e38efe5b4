"""Check, plan, start and watch runs: `trl-miner doctor`, `launch` and `train`."""
