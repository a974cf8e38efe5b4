"""Lets TRL train with vLLM's CPU build. Python imports this file at its start where its folder is
on PYTHONPATH, so that the unchanged `trl_miner.train` and vLLM's unchanged server run with it.

Of vLLM and TRL only what needs a GPU is replaced: how bytes travel from trainer to server (a TCP
store instead of NCCL), the layout of a linear layer's weights, and bfloat16. Who sends which
weights when, and how they are loaded, stays theirs.
"""

import functools
import importlib.abc
import importlib.machinery
import os
import sys
from types import SimpleNamespace

SWITCH = "TRL_MINER_VLLM_ON_CPU"


def plain_linear_layers(module):
    """vLLM's CPU backend repacks weights once they are loaded: later ones find no place, a tied
    head gets stale."""
    from torch.nn.functional import linear

    def dispatch(layer, remove_weight):
        layer.cpu_linear = linear

    module.dispatch_cpu_unquantized_gemm = dispatch


def join(info, rank):
    """The group of a trainer (rank 0) and vLLM's workers, over a TCP store."""
    from vllm.distributed.utils import StatelessProcessGroup

    get = info.get if isinstance(info, dict) else functools.partial(getattr, info)
    # TRL takes the group of a communicator apart to close it
    address, port, size = (get(name) for name in ("master_address", "master_port", "world_size"))
    return SimpleNamespace(group=StatelessProcessGroup.create(address, port, rank, size))


def rendezvous_without_nccl(module):
    module.trainer_init = lambda info, rank=0: join(info, rank)
    module.worker_init_process_group = lambda info, parallel: join(
        info,
        parallel.data_parallel_index * parallel.world_size + parallel.rank + info.rank_offset,
    )


def broadcast_without_nccl(module):
    import torch

    def produce(iterator, group, src, post_iter_func, **sizes):
        for item in iterator:
            group.group.broadcast(post_iter_func(item), src)

    def consume(iterator, group, src, post_unpack_func, **sizes):
        for name, (shape, dtype) in iterator:
            post_unpack_func([(name, group.group.broadcast(torch.empty(shape, dtype=dtype), src))])

    module.packed_nccl_broadcast_producer, module.packed_nccl_broadcast_consumer = produce, consume


def update_without_waiting_for_a_gpu(module):
    module.NCCLWeightTransferEngine.update_weights = lambda self, info: self.receive_weights(
        self.parse_update_info(info)
    )


def client_without_a_gpu(module):
    import torch

    init = module.VLLMClient.init_communicator
    # "cuda" without an index passes TRL's check and touches no device
    module.VLLMClient.init_communicator = lambda self, device=0: init(self, torch.device("cuda"))


def colocated_in_float32(module):
    """vLLM would turn float32 weights into bfloat16, which its CPU attention cannot do for a model
    this small. And it would take all the memory it may for its cache; 64 blocks are 8192 tokens."""
    module.LLM = functools.partial(module.LLM, dtype="float32", num_gpu_blocks_override=64)


PATCHES = {
    "vllm.model_executor.layers.utils": plain_linear_layers,
    "vllm.distributed.weight_transfer.nccl_common": rendezvous_without_nccl,
    "vllm.distributed.weight_transfer.packed_tensor": broadcast_without_nccl,
    "vllm.distributed.weight_transfer.nccl_engine": update_without_waiting_for_a_gpu,
    "trl.generation.vllm_client": client_without_a_gpu,
    "trl.generation.vllm_generation": colocated_in_float32,
}


class PatchOnImport(importlib.abc.MetaPathFinder):
    """Patches a module right after it is imported: importing vLLM here would cost every Python
    process 15 seconds."""

    def find_spec(self, name, path, target=None):
        if name not in PATCHES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def execute_and_patch(module):
            execute(module)
            PATCHES[name](module)

        spec.loader.exec_module = execute_and_patch
        return spec


if os.environ.get(SWITCH):
    sys.meta_path.insert(0, PatchOnImport())
