"""`trl-miner compare`: train every recipe with every seed, one run or several at a time, and print one table.

The process that does all this stays light: it loads neither torch nor a GPU, which the runs need, so recipes are read
in a child process too.
"""

from .comparison import compare as compare
