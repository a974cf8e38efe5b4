"""Weights in shards on a CPU."""

from accelerate import PartialState
from accelerate.state import AcceleratorState, DistributedType


def shard_on_a_cpu():
    """accelerate 1.15 takes the settings of FSDP and DeepSpeed on a CPU and trains without either,
    as plain DDP: its AcceleratorState looks at them only where it found a GPU. Once told, both work
    there, with gloo."""
    init = AcceleratorState.__init__

    def init_sharded(self, *args, deepspeed_plugin=None, fsdp_plugin=None, **kwargs):
        init(self, *args, deepspeed_plugin=deepspeed_plugin, fsdp_plugin=fsdp_plugin, **kwargs)
        if self.distributed_type != DistributedType.MULTI_CPU:
            return
        if fsdp_plugin is not None:
            kind, self.fsdp_plugin = DistributedType.FSDP, fsdp_plugin
        elif deepspeed_plugin is not None:
            deepspeed_plugin.set_mixed_precision("no")
            deepspeed_plugin.select(_from_accelerator_state=True)
            kind, self.deepspeed_plugins = DistributedType.DEEPSPEED, deepspeed_plugin
        else:
            return
        self.distributed_type = PartialState._shared_state["distributed_type"] = kind

    AcceleratorState.__init__ = init_sharded
