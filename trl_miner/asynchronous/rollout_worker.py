"""TRL's rollout worker for prompts of plain text, whose rewards are checked, and whose process ends
when it should."""

import asyncio
import multiprocessing
import os
import queue
import threading
import time
from typing import Any, cast

from trl.trainer.utils import get_callable_name

from ..trainer.reward_functions import RewardError, checked, reward_list
from ..trainer.trl_asynchronous import (
    AsyncRolloutWorker,
    TurnRecord,
    _AsyncRolloutLoop,
    _chain_to_sequences,
)
from .windows import ROLLOUT

STOP_SECONDS = 15.0  # that a process has to end by itself, as in TRL
KILL_SECONDS = 5.0  # between SIGTERM and SIGKILL, and after it


class TextLoop(_AsyncRolloutLoop):
    """TRL's loop, which takes conversations alone; a prompt of plain text is one turn without a
    chat template."""

    def __init__(self, **kwargs: Any) -> None:
        # before anything that waits for the training's process
        if (parent := multiprocessing.parent_process()) is not None:
            threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
        if isinstance(next(iter(kwargs["dataset"])).get("prompt"), str):
            # else TRL asks for a chat template that it knows
            kwargs["processing_class"].response_template = {}
        kwargs["reward_funcs"] = [
            checked(get_callable_name(function), function) for function in kwargs["reward_funcs"]
        ]
        super().__init__(**kwargs)

    def run(self) -> None:
        """Run until the worker is stopped, as TRL's loop does."""
        try:
            super().run()
        finally:
            # nobody takes what is left, and the end would wait for that
            self.rollout_buffer.cancel_join_thread()

    async def _run_loops(self, stop_event: asyncio.Event) -> None:
        """Run TRL's loops until the worker is stopped. A reward that is wrong ends them without a
        traceback of theirs: the training tells it."""
        try:
            await self._loops(stop_event)
        except RewardError as error:
            self._exception_info_queue.put((RewardError.__name__, str(error), ""))
            self._failed_event.set()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

    async def _loops(self, stop_event: asyncio.Event) -> None:
        await super()._run_loops(stop_event)

    async def _generate_one(self, prompt: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        if not isinstance(prompt, str):
            generated: tuple[Any, ...] = await super()._generate_one(prompt, *args, **kwargs)
            return generated
        prompt_ids = self.tokenizer(prompt)["input_ids"]
        ids, logps = await self._generate_one_turn(prompt_ids)
        sequences, _ = _chain_to_sequences(
            [TurnRecord(prompt_ids, ids, logps)], "", self._fork_threshold_tokens
        )
        return self.tokenizer.decode(ids, skip_special_tokens=True), ids, sequences, 0, 0, None

    async def _score_group(self, group: Any) -> list[Any]:
        for kind, reward in filter(None, group.env_rewards):
            reward_list(kind.__name__, [reward], 1)
        samples: list[Any] = await super()._score_group(group)
        places = [i for i, rows in enumerate(group.completions_sequences) for _ in rows]
        for place, sample in zip(places, samples, strict=True):
            sample.metrics[ROLLOUT] = place
        return samples


def _end_with(parent: Any) -> None:
    """End this process once its parent has ended, however that was: it would sample for ever."""
    parent.join()
    os._exit(1)


class TextWorker(AsyncRolloutWorker):
    """TRL's worker, which asks a vLLM server, for prompts of plain text, too."""

    _loop_cls: type[TextLoop] = TextLoop
    _process: Any  # of multiprocessing; None before the start and after the end
    _is_stuck = False  # whether its process no longer answers

    def check_health(self, stale_after_s: float) -> None:
        """Raise as TRL's does, and at once where the process is gone without a word, as when it was
        killed.

        Raises:
            RewardError: A reward function has failed, or returned something else than rewards.
            RuntimeError: The process has failed, is gone, or has given no sign of life for so many
                seconds.
        """
        if self._failed_event.is_set():
            raise self._failure()
        if self._process is not None and not self._process.is_alive():
            raise RuntimeError(
                "The rollout worker must live as long as the training: its process has ended with"
                f" exit code {self._process.exitcode}. If that is -9, the machine was out of"
                " memory. Go on with --resume_from_checkpoint latest."
            )
        age = time.time() - self._heartbeat_value.value
        if age > stale_after_s:
            self._is_stuck = True
            raise RuntimeError(
                f"The rollout worker has given no sign of life for {age:.0f} seconds, more than"
                f" heartbeat_stale_after_s={stale_after_s:g}: its process was stopped, or a reward"
                " function or tool holds Python's lock, as a regular expression or symbolic"
                " mathematics can. Give such a call a limit, and go on with"
                " --resume_from_checkpoint latest."
            )

    def _failure(self) -> Exception:
        """Return the error of the process."""
        try:  # it is sent by a thread, which may be a little later than the event
            kind, text, trace = self._exception_info_queue.get(timeout=KILL_SECONDS)
        except queue.Empty:
            return RuntimeError("The rollout worker has failed. Its error stands above.")
        if kind == RewardError.__name__:
            return RewardError(text)
        error = RuntimeError(f"The rollout worker has failed with {kind}: {text}")
        error.__cause__ = RuntimeError(trace)
        return error

    def stop(self) -> None:
        """End the process, and make the worker ready to start again.

        A process that answers is asked. One that does not is killed: to ask it takes a lock that it
        may hold, and to wait for it takes for ever.
        """
        process = self._process
        if process is not None and process.pid is not None:
            if not self._is_stuck:
                threading.Thread(target=self._stop_event_mp.set, daemon=True).start()
                process.join(STOP_SECONDS)
            for end in (process.terminate, process.kill):
                if process.is_alive():
                    end()
                    process.join(KILL_SECONDS)
        if process is not None:
            self._renew()

    def _renew(self) -> None:
        """Take new queues and events: what the process has left in the old ones is nobody's."""
        self._is_stuck = False
        kwargs = {"child_ready_timeout": self._child_ready_timeout, **self._loop_kwargs}
        cast(Any, self).__init__(**kwargs)
