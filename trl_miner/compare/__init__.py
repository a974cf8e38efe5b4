"""`trl-miner compare`: train every recipe with every seed, one run or several at a time, and print one table.

`recipes` reads the recipes, `runs` trains, and `comparison` puts both together. The process that does all this stays
light: it loads neither torch nor a GPU, which the runs need, so recipes are read in a child process too.
"""

from .comparison import compare

__all__ = ["compare"]
