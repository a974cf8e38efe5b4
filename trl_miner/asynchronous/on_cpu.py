"""What the asynchronous trainer takes in the place of a Hopper GPU and a vLLM server: for tests, and
small models on a CPU.

A process of this machine samples with transformers; it gets the weights in a file. TRL's attention
over trees of rollouts is computed segment by segment.
"""

import asyncio
import os
import secrets
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from ..trainer.trl_asynchronous import AsyncRolloutWorker
from .rollout_worker import TextLoop, TextWorker


class LocalLoop(TextLoop):
    """Samples from a copy of the policy in this process, all waiting prompts together, with
    transformers."""

    def __init__(self, *, weights: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._weights, self._loaded = Path(weights), 0
        self._waiting: list[tuple[list[int], asyncio.Future[Any]]] = []
        self._model = AutoModelForCausalLM.from_pretrained(self.model_name).eval()

    async def _loops(self, stop_event: asyncio.Event) -> None:
        await asyncio.gather(
            self._generate_loop(stop_event=stop_event),
            self._score_loop(stop_event=stop_event),
            self._sample_loop(stop_event),
        )

    async def _generate_one_turn(self, prompt_ids: list[int]) -> tuple[list[int], list[float]]:
        sampled: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((prompt_ids, sampled))
        tokens, logps = await sampled
        return tokens, logps

    async def _sample_loop(self, stop_event: asyncio.Event) -> None:
        while not stop_event.is_set():
            batch, self._waiting = self._waiting, []
            if not batch:
                await asyncio.sleep(0.01)
                continue
            results = await asyncio.to_thread(self.sample, [prompt for prompt, _ in batch])
            for (_, sampled), result in zip(batch, results, strict=True):
                if not sampled.done():
                    sampled.set_result(result)
        for _, sampled in self._waiting:
            sampled.cancel()

    @torch.no_grad()
    def sample(self, prompts: list[list[int]]) -> list[tuple[list[int], list[float]]]:
        """Return the tokens of a completion of each prompt, and their log-probs as they were
        sampled."""
        written = self._weights.stat().st_mtime_ns
        if written != self._loaded:  # a new file takes the old one's place at once
            self._model.load_state_dict(load_file(self._weights), strict=False)
            self._loaded = written
        batch = self.tokenizer.pad({"input_ids": prompts}, padding_side="left", return_tensors="pt")
        output = self._model.generate(
            **batch,
            do_sample=True,
            max_new_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            eos_token_id=self.eos_token_ids,
            pad_token_id=self.tokenizer.pad_token_id,
            output_scores=True,
            return_dict_in_generate=True,
        )
        logps = self._model.compute_transition_scores(
            output.sequences, output.scores, normalize_logits=True
        )
        rows = output.sequences[:, batch["input_ids"].shape[1] :].tolist()
        sampled = []
        for row, row_logps in zip(rows, logps.tolist(), strict=True):
            ends = (place + 1 for place, token in enumerate(row) if token in self.eos_token_ids)
            end = next(ends, len(row))
            sampled.append((row[:end], row_logps[:end]))
        return sampled


class LocalWorker(TextWorker):
    """TRL's worker without a server: its process samples by itself, from the weights of a
    `FileTransfer`."""

    _loop_cls = LocalLoop

    def __init__(self, **kwargs: Any) -> None:
        is_there = {"is_vllm_available": lambda: True, "is_aiohttp_available": lambda: True}
        with patch.dict(AsyncRolloutWorker.__init__.__globals__, is_there):  # it does without them
            super().__init__(**kwargs)


class FileTransfer:
    """Hands weights to a `LocalWorker` in a file, which is whole or the one before.

    It is in a folder under the temporary one, from the beginning of a training to its end, whatever
    ends it: a shell waits for the end of this process, and deletes the folder.
    """

    def __init__(self) -> None:
        name = f"trl_miner-weights-{os.getpid()}-{secrets.token_hex(4)}"
        self.path = str(Path(tempfile.gettempdir(), name, "weights.safetensors"))
        self._cleaner: subprocess.Popen[bytes] | None = None

    def init_weight_transfer(self) -> None:
        """Make the folder, and start what will delete it."""
        folder = str(Path(self.path).parent)
        # its input ends with this process, or with `destroy`; a signal of the terminal must not
        # end it
        script = 'cat >/dev/null; rm -rf -- "$1"'
        self._cleaner = subprocess.Popen(
            ["/bin/sh", "-c", script, "sh", folder], stdin=subprocess.PIPE, start_new_session=True
        )
        os.mkdir(folder, mode=0o700)

    def send_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Replace the file."""
        save_file(
            {name: weight.cpu().contiguous() for name, weight in weights}, f"{self.path}.part"
        )
        os.replace(f"{self.path}.part", self.path)

    def pause(self) -> None:
        """The worker goes on: a rollout is of the weights with which its batch began."""

    resume = pause

    def destroy(self) -> None:
        """Delete the folder."""
        if self._cleaner is not None:
            self._cleaner.communicate()
            self._cleaner = None


def runs_tree_kernel() -> bool:
    """Return whether TRL's attention kernel runs here: on Hopper GPUs, and AMD's."""
    if not torch.cuda.is_available():
        return False
    return torch.version.hip is not None or torch.cuda.get_device_capability()[0] == 9


def tree_attention_anywhere(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    *,
    tree_kv_index: Tensor,
    tree_cu_seqlens_q: Tensor,
    tree_cu_seqlens_k: Tensor,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Return what TRL's kernel computes, on any device: each segment attends to its own path,
    causally, both ending at the same token.

    Raises:
        ValueError: The model caps its attention scores (`softcap`).
    """
    if softcap:
        raise ValueError(
            f"Attention without TRL's kernel knows no softcap: got {softcap}. Train on a Hopper"
            " GPU, or another model."
        )
    segments = []
    queries, keys = tree_cu_seqlens_q.tolist(), tree_cu_seqlens_k.tolist()
    for q0, q1, k0, k1 in zip(queries, queries[1:], keys, keys[1:], strict=False):
        path = tree_kv_index[k0:k1]
        shape, end = (q1 - q0, k1 - k0), k1 - k0 - (q1 - q0)
        sees = torch.ones(shape, dtype=torch.bool, device=query.device).tril(end)
        if sliding_window:
            sees = sees.triu(end - sliding_window + 1)
        segments.append(
            torch.nn.functional.scaled_dot_product_attention(
                query[:, :, q0:q1],
                key[:, :, path],
                value[:, :, path],
                attn_mask=sees,
                scale=scaling,
                enable_gqa=query.shape[1] != key.shape[1],
            )
        )
    return torch.cat(segments, dim=2).transpose(1, 2), None
