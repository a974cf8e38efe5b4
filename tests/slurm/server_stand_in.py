"""Stands in the place of `trl-miner launch RECIPE --only server` in run.sh: serves nothing, and says
how it is ended."""

import signal
import sys
import time

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print("the server's stand-in was started:", *sys.argv[1:], flush=True)
ended_by = signal.Signals(signal.sigwait({signal.SIGTERM}))
time.sleep(3)  # as long as a server may take, to be killed meanwhile if it is not let end
print("the server's stand-in ended by", ended_by.name, flush=True)
sys.exit(128 + ended_by)
