"""`trl-miner doctor`: will a recipe run on a machine? `examination` runs all checks."""
