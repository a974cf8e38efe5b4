"""One line in a plain script: `GRPOTrainer(..., callbacks=[PromptKinds()])`.

```python
from trl import GRPOTrainer
from trl_miner import PromptKinds

trainer = GRPOTrainer(model, reward_funcs=math_reward, train_dataset=data, callbacks=[PromptKinds()])
```
"""

import inspect
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback

from ..trainer.base import logged_rollouts, train_metrics
from ..trainer.trainer import MinerGRPOTrainer
from ..viewing.causes import Evidence, find_causes
from ..viewing.prompt_outcomes import THRESHOLD, OutcomeCollector
from ..viewing.rollouts import RolloutFiles

logger = logging.getLogger(__name__)

_MOST_BATCHES = 128  # that are kept, spread over the training
_FIRST_LOOK = 16  # logs before the first warning; then at twice as many, and so on


class PromptKinds(TrainerCallback):
    """Logs how prompts come out, and warns once of each cause why a run does not learn.

    It works with `GRPOTrainer` and `RLOOTrainer` as they are. Every tracker gets `groups/ph`,
    `groups/he`, `groups/nh` and `groups/unscorable` (the shares of prompts that are all right, mixed,
    all wrong, and not judged), `rollouts/grpo` (of rollouts with a gradient) and
    `rollouts/recovered` (of those of all-right prompts, which MINER would use). TRL's asynchronous
    trainer gives no callback its rollouts: there it says so, and warns of what the log shows alone.

    Args:
        correct: The reward functions that decide what is right. Empty: found by names and values.
        threshold: Their reward from which on a rollout is right.
    """

    def __init__(self, correct: Sequence[str] = (), threshold: float = THRESHOLD) -> None:
        self._chosen, self._threshold = correct, threshold
        self._collector = OutcomeCollector(correct, threshold)
        self._batches = RolloutFiles(Path(), ())
        self._trainer: Any = None
        self._logs: list[dict[str, Any]] = []
        self._next_look = _FIRST_LOOK
        self._warned: set[str] = set()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._trainer = _calling_trainer()
        names = getattr(self._trainer, "reward_func_names", [])
        weights = getattr(self._trainer, "reward_weights", [])
        self._batches.weights = dict(zip(names, map(float, weights), strict=False))
        self._batches.num_generations = getattr(self._trainer, "num_generations", None)
        if state.is_world_process_zero and logged_rollouts(self._trainer) is None:
            logger.warning(
                f"{type(self._trainer).__name__} keeps no rollouts that PromptKinds could see: it"
                " warns of what the log shows alone."
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        frame = self._new_batch() if state.is_world_process_zero else None
        if frame is None:
            return
        self._collector.add(frame)
        if len(self._collector.parts) > _MOST_BATCHES:
            del self._collector.parts[1::2]
        if isinstance(self._trainer, MinerGRPOTrainer):
            return  # it logs the same
        latest = OutcomeCollector(self._chosen, self._threshold)
        latest.add(frame)
        metrics = train_metrics(self._trainer)
        for name, points in latest.outcomes().columns().items():
            if name.startswith(("groups/", "rollouts/")):
                metrics[name].append(float(points[-1, 1]))

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._new_batch()  # whose rollouts train nothing

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        if not state.is_world_process_zero or "reward" not in (logs or {}):
            return
        self._logs.append({**(logs or {}), "step": state.global_step})
        if len(self._logs) >= self._next_look:
            self._next_look *= 2
            self._warn(with_alerts="trackio" in (args.report_to or ()))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self._warn()  # the tracker's run is over

    def _new_batch(self) -> Any:
        """Return the rollouts of the last generation batch as a frame; None: they were there
        before, or the trainer keeps none."""
        import pandas as pd

        kept = logged_rollouts(self._trainer)
        if not kept or not kept["prompt"]:
            return None
        columns = {
            "step": 0,
            "prompt": list(kept["prompt"]),
            "completion": list(kept["completion"]),
        }
        rewards = {name: list(values) for name, values in kept["rewards"].items()}
        table = pd.DataFrame(columns | rewards | {"advantage": list(kept["advantages"])})
        return self._batches.batch(table.assign(step=self._trainer.state.global_step))

    def _warn(self, *, with_alerts: bool = False) -> None:
        from ..runs.history import columns_of

        outcomes = self._collector.outcomes() if self._collector.parts else None
        for cause in find_causes(Evidence(outcomes, columns_of(self._logs))):
            if cause.key not in self._warned:
                self._warned.add(cause.key)
                logger.warning(f"{cause}")
                if with_alerts:
                    import trackio

                    trackio.alert(
                        title=cause.title, text=f"{cause.evidence} Next: {cause.next_step}"
                    )


def _calling_trainer() -> Trainer | None:
    """Return the trainer whose event is handled: a callback is told of its model alone."""
    frame = inspect.currentframe()
    while frame is not None:
        if isinstance(owner := frame.f_locals.get("self"), Trainer):
            return owner
        frame = frame.f_back
    return None
