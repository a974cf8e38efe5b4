"""Stands in the place of `trl-miner launch RECIPE --only server` in run.sh: listens where it is told
to, serves nothing, and says how it is ended."""

import argparse
import signal
import socket
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("--host")
parser.add_argument("--vllm_server_port", type=int)
where, _ = parser.parse_known_args()

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
with socket.create_server((where.host, where.vllm_server_port)):
    print("the server's stand-in was started:", *sys.argv[1:], flush=True)
    ended_by = signal.Signals(signal.sigwait({signal.SIGTERM}))
time.sleep(3)  # as long as a server may take, to be killed meanwhile if it is not let end
print("the server's stand-in ended by", ended_by.name, flush=True)
sys.exit(128 + ended_by)
