"""`trl-miner doctor`: will a recipe run on a machine? `checks` say, `memory` estimates, `machine` is what is there."""
