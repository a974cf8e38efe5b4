"""`MinerAsyncGRPOTrainer`: TRL's asynchronous trainer with the advantages of the methods.

`trainer.py` is the trainer, `windows.py` what stands between TRL's queue of rollouts and its
batches, `rollout_worker.py` the process that asks a vLLM server. `on_cpu.py` has the stand-ins for
a server and a GPU. Which names of TRL all of them use stands in `trl_asynchronous.py`.
"""
