"""TRL's asynchronous trainer: every name of it that this package uses, where TRL has it, and what
for.

TRL 1.16 keeps it in `trl.experimental.async_grpo`; from 1.18 on it is part of `trl`. A name is
looked for when a module imports it from here. One that TRL has nowhere, or whose class has lost
something that is overridden or read, ends that import with one error, and nothing else: `import
trl_miner` and the synchronous trainer need none of them.
"""

import inspect
from importlib import import_module
from types import FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # those that are read as types or bases
    from trl.experimental.async_grpo import AsyncGRPOConfig as AsyncGRPOConfig
    from trl.experimental.async_grpo import AsyncGRPOTrainer as AsyncGRPOTrainer
    from trl.experimental.async_grpo.async_grpo_trainer import (
        DataCollatorForRollout as DataCollatorForRollout,
    )
    from trl.experimental.async_grpo.async_grpo_trainer import (
        RolloutQueueDataset as RolloutQueueDataset,
    )
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample as RolloutSample
    from trl.experimental.async_grpo.packing import TreeRow as TreeRow

# The modules that are looked into for a name, in this order.
_PUBLIC = ("trl", "trl.experimental.async_grpo")
_TRAINER = ("trl.trainer.async_grpo_trainer", "trl.experimental.async_grpo.async_grpo_trainer")
_WORKER = ("trl.trainer.async_grpo_trainer", "trl.experimental.async_grpo.async_rollout_worker")
_PACKING = ("trl.trainer.async_grpo_trainer", "trl.experimental.async_grpo.packing")
MODULES = {
    # the trainer and its settings
    "AsyncGRPOConfig": _PUBLIC,
    "AsyncGRPOTrainer": _PUBLIC,
    "RolloutQueueDataset": _TRAINER,
    "DataCollatorForRollout": _TRAINER,
    "TreeRow": _PACKING,
    # a second training of one trainer, which TRL would not begin
    "_TrainBeginCallback": _TRAINER,
    # the rollout worker: plain text, forked conversations, checked rewards, an end that comes
    "AsyncRolloutWorker": _WORKER,
    "_AsyncRolloutLoop": _WORKER,
    "RolloutSample": _WORKER,
    "TurnRecord": _WORKER,
    "_chain_to_sequences": _WORKER,
    # training without a Hopper GPU, or without any
    "TREE_ATTENTION": _PACKING,
    # the flags of a vLLM server that takes adapters
    "round_lora_rank": _TRAINER,
}
# What is overridden (with its parameters), read or called of a class, and why.
MEMBERS: dict[str, dict[str, str]] = {
    "AsyncGRPOTrainer": {
        "get_train_dataloader(self)": "whole groups of a window get their advantages",
        "training_step(self, model, inputs, num_items_in_batch)": "they must have reached the loss",
        "compute_loss(self, model, inputs, return_outputs, num_items_in_batch)": (
            "divides by `global_n_tokens`, which is made the mean of the step's micro-batches"
        ),
        "_metrics": "metrics of a window, of which TRL logs the mean",
        "_trained_groups": "a resumed run begins at the first prompt that is not in it",
        "_last_groups_trained": "a group that is passed over is none that was trained",
        "AsyncRolloutWorker": "the name by which its constructor makes a worker",
        "get_peak_flops_per_device": "asks CUDA for a name, and is replaced where there is none",
        "rollout_queue": "is read through `Taken`",
        "rollout_worker": "whose queue is read anew in every training",
    },
    "RolloutQueueDataset": {
        "__iter__(self)": "yields what the queue gave last, after TRL has dropped the stale ones",
    },
    "DataCollatorForRollout": {
        "torch_call(self, examples)": "the advantages of tokens replace those of samples",
    },
    "TreeRow": {"pack(self)": "advantages stand sample by sample"},
    "_TrainBeginCallback": {"_fired": "whether the worker has been started"},
    "AsyncRolloutWorker": {
        "_loop_cls": "how a worker finds its loop",
        "_loop_kwargs": "what a worker that starts again is made with",
        "_child_ready_timeout": "likewise",
        "_process": "its process, which is watched and ended",
        "_stop_event_mp": "asks the process to end",
        "_heartbeat_value": "when the process gave its last sign of life",
        "_failed_event": "the process has failed",
        "_exception_info_queue": "why it has",
        "is_vllm_available": "asked by its constructor; sampling without a server needs no vLLM",
        "is_aiohttp_available": "likewise",
        "start(self)": "starts the process",
        "check_health(self, stale_after_s)": "says that the process has failed, or is stuck",
        "stop(self)": "waits for a process that is stuck",
    },
    "_AsyncRolloutLoop": {
        "run(self)": "runs in the process of the worker",
        "_generate_one(self, prompt, tool_dict, tools, group_id)": "prompts of plain text",
        "_generate_one_turn(self, prompt_ids)": "sampling without a server",
        "_run_loops(self, stop_event)": "sampling without a server, as a third loop",
        "_generate_loop(self, stop_event)": "one of them",
        "_score_loop(self, stop_event)": "one of them",
        "_score_group(self, group)": "tells which rows are of one rollout",
        "_fork_threshold_tokens": "when a conversation forks",
    },
    "RolloutSample": {
        name: "a row of training data"
        for name in "input_ids completion_mask old_log_probs advantage group_id metrics completion".split()
    },
}


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    reasons = []
    for path in MODULES[name]:
        try:
            value = getattr(import_module(path), name)
        except (
            ImportError,
            AttributeError,
            RuntimeError,
        ) as error:  # RuntimeError: of lazy modules
            reasons.append(f"{path} ({str(error).splitlines()[0]})")
            continue
        if lost := [member for member in MEMBERS.get(name, ()) if not has_member(value, member)]:
            raise _moved(f"a {name} without {', '.join(lost)} in {path}")
        globals()[name] = value
        return value
    raise _moved(f"no {name} in {' or '.join(reasons)}")


def has_member(kind: Any, member: str) -> bool:
    """Return whether a class has a member: a method with these parameters, a field, or an attribute
    that one of its methods sets or reads."""
    name, _, parameters = member.partition("(")
    methods = [value for value in vars(kind).values() if isinstance(value, FunctionType)]
    if not parameters:
        return hasattr(kind, name) or any(name in method.__code__.co_names for method in methods)
    method = getattr(kind, name, None)
    taken = inspect.signature(method).parameters if callable(method) else ()
    return ", ".join(taken) == parameters.rstrip(")")


def _moved(what: str) -> ImportError:
    import trl

    return ImportError(
        f"The asynchronous trainer is written for TRL 1.16: TRL {trl.__version__} has {what}."
        " Install trl 1.16, or train with the synchronous trainer, MinerGRPOTrainer (a recipe"
        " without asynchronous: true)."
    )
