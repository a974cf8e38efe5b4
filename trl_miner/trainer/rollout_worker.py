"""TRL's rollout worker for prompts of plain text, and one that samples on this machine in the place
of a server."""

import asyncio
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from trl.experimental.async_grpo import async_rollout_worker
from trl.experimental.async_grpo.async_rollout_worker import (
    AsyncRolloutWorker,
    TurnRecord,
    _AsyncRolloutLoop,
    _chain_to_sequences,
)


class TextLoop(_AsyncRolloutLoop):
    """TRL's loop, which takes conversations alone; a prompt of plain text is one turn without a
    chat template."""

    def __init__(self, **kwargs: Any) -> None:
        if isinstance(next(iter(kwargs["dataset"])).get("prompt"), str):
            # else TRL asks for a chat template that it knows
            kwargs["processing_class"].response_template = {}
        super().__init__(**kwargs)

    def run(self) -> None:
        """Run until the worker is stopped, as TRL's loop does."""
        try:
            super().run()
        finally:
            # nobody takes what is left, and the end would wait for that
            self.rollout_buffer.cancel_join_thread()

    async def _generate_one(self, prompt: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        if not isinstance(prompt, str):
            generated: tuple[Any, ...] = await super()._generate_one(prompt, *args, **kwargs)
            # in the queue they could pass for rollouts that are stale elsewhere
            if len(generated[2]) > 1:
                raise ValueError(
                    f"A conversation must be one row of training data: got {len(generated[2])},"
                    " because the chat template changes what was said in earlier turns. Use a"
                    " template that keeps it, or train with MinerGRPOTrainer."
                )
            return generated
        prompt_ids = self.tokenizer(prompt)["input_ids"]
        ids, logps = await self._generate_one_turn(prompt_ids)
        sequences, _ = _chain_to_sequences(
            [TurnRecord(prompt_ids, ids, logps)], "", self._fork_threshold_tokens
        )
        return self.tokenizer.decode(ids, skip_special_tokens=True), ids, sequences, 0, 0, None


class TextWorker(AsyncRolloutWorker):
    """TRL's worker, which asks a vLLM server, for prompts of plain text, too."""

    _loop_cls: type[TextLoop] = TextLoop
    _process: Any  # of multiprocessing; None before the start and after the end

    def check_health(self, stale_after_s: float) -> None:
        """Raise as TRL's does, and at once where the process is gone without a word, as when it was
        killed."""
        super().check_health(stale_after_s)
        if self._process is not None and not self._process.is_alive():
            raise RuntimeError(
                "The rollout worker must live as long as the training: its process has ended with"
                f" exit code {self._process.exitcode}. If that is -9, the machine was out of"
                " memory. Go on with --resume_from_checkpoint latest."
            )

    def stop(self) -> None:
        """Stop as TRL's does; one that has ended cannot be told to, and TRL would wait for its
        answer forever."""
        if self._process is not None and self._failed_event.is_set():
            self._process.join(timeout=15)
        if self._process is not None and not self._process.is_alive():
            self._process = None
        super().stop()


class LocalLoop(TextLoop):
    """Samples from a copy of the policy in this process, all waiting prompts together, with
    transformers."""

    def __init__(self, *, weights: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._weights, self._loaded = Path(weights), 0
        self._waiting: list[tuple[list[int], asyncio.Future[Any]]] = []
        self._model = AutoModelForCausalLM.from_pretrained(self.model_name).eval()

    async def _run_loops(self, stop_event: asyncio.Event) -> None:
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
            found = await asyncio.to_thread(self.sample, [prompt for prompt, _ in batch])
            for (_, sampled), result in zip(batch, found, strict=True):
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
        ends = [
            next(
                (place + 1 for place, token in enumerate(row) if token in self.eos_token_ids),
                len(row),
            )
            for row in rows
        ]
        return [
            (row[:end], own[:end]) for row, own, end in zip(rows, logps.tolist(), ends, strict=True)
        ]


class LocalWorker(TextWorker):
    """TRL's worker without a server: its process samples by itself, from the weights of a
    `FileTransfer`."""

    _loop_cls = LocalLoop

    def __init__(self, **kwargs: Any) -> None:
        with (
            # which it does without
            patch.object(async_rollout_worker, "is_vllm_available", lambda: True),
            patch.object(async_rollout_worker, "is_aiohttp_available", lambda: True),
        ):
            super().__init__(**kwargs)


class FileTransfer:
    """Hands weights to a `LocalWorker` in a file, which is whole or the one before."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="trl_miner-weights-")
        self.path = str(Path(self._folder.name, "weights.safetensors"))

    def send_weights(
        self, weights: Iterable[tuple[str, torch.Tensor]] | Iterator[tuple[str, torch.Tensor]]
    ) -> None:
        """Replace the file."""
        save_file(
            {name: weight.cpu().contiguous() for name, weight in weights}, f"{self.path}.part"
        )
        os.replace(f"{self.path}.part", self.path)

    def init_weight_transfer(self) -> None:
        """Nothing is to be set up."""

    def pause(self) -> None:
        """The worker goes on: a rollout is of the weights with which its batch began."""

    resume = pause

    def destroy(self) -> None:
        """Delete the file."""
        self._folder.cleanup()
