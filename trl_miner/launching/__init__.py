"""What `trl-miner launch` starts, and how it is watched."""
