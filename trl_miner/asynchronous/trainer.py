"""`MinerAsyncGRPOTrainer`: the advantages of the methods in TRL's asynchronous trainer, which
generates meanwhile.

# N rollouts of a window, whole groups of G; F reward functions; T tokens that a rollout is trained
on, at most
"""

import functools
import inspect
import logging
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from datasets import Dataset
from torch import Tensor
from transformers import AttentionInterface
from trl.trainer.utils import get_callable_name

from ..data.base_model import find_model
from ..data.prompts import token_ids
from ..grading.pool import CPU_SECONDS
from ..launching.server import LOGPROBS_FLAG, logprobs_mode, wrong_logprobs
from ..methods import Rollouts
from ..methods.compose import estimate
from ..tools import TOOL_SECONDS
from ..trainer.async_config import MinerAsyncGRPOConfig
from ..trainer.base import TrainerBase
from ..trainer.generation_batch import correct_rollouts
from ..trainer.observers import ScoredBatch
from ..trainer.outcomes import PromptOutcomes
from ..trainer.reward_functions import RewardError, check_rewards
from ..trainer.trl_asynchronous import (
    TREE_ATTENTION,
    AsyncGRPOConfig,
    AsyncGRPOTrainer,
    _TrainBeginCallback,
)
from .on_cpu import FileTransfer, LocalWorker, runs_tree_kernel, tree_attention_anywhere
from .rollout_worker import TextWorker
from .windows import AsyncRollout, Taken, TokenAdvantages, Windows, by_tokens_of_the_step

logger = logging.getLogger(__name__)
# of the sampler's log-probs from the policy's, nats a token; 0.2 nats apart is about this much
SUSPICIOUS_KL = 0.02
UNSCORED_WINDOWS = 5  # without a single reward, which end the training


class MinerAsyncGRPOTrainer(TrainerBase, AsyncGRPOTrainer):
    """TRL's `AsyncGRPOTrainer`, which also learns from all-right prompts: those whose completions
    are all correct. By default this is MINER (https://huggingface.co/papers/2601.04731).

    It takes TRL's arguments. `args` is a `MinerAsyncGRPOConfig`; with TRL's `AsyncGRPOConfig`, or
    none, MINER trains with its defaults. Rewards, packing and loss are TRL's own. What changes are
    the advantages: there is one for each token.

    Advantages are estimated on whole groups, a window of `per_device_train_batch_size x
    gradient_accumulation_steps x processes` completions at a time. A window is an optimizer step,
    unless `token_budget` is above 0: then steps hold other numbers of rows, and a window may reach
    into the next step. Old log-probs are those of the server that generated. Prompts may also be
    plain text. On a CPU (`use_cpu`), a process of this machine generates in place of a server.
    """

    _config, _trl_config = MinerAsyncGRPOConfig, AsyncGRPOConfig
    args: MinerAsyncGRPOConfig
    has_stepped: bool
    _num_unscored: int  # windows in a row without a reward
    _collator: TokenAdvantages | None  # on the main process, once it trains

    if not TYPE_CHECKING:  # where the signature is TRL's, too

        @functools.wraps(AsyncGRPOTrainer.__init__)
        def __init__(self, model, reward_funcs=None, args=None, *rest, **kwargs) -> None:
            args = self._settings(model, args)
            bound = inspect.signature(AsyncGRPOTrainer.__init__).bind(
                self, find_model(model), reward_funcs, args, *rest, **kwargs
            )
            given = {name: value for name, value in bound.arguments.items() if name != "self"}
            with ExitStack() as stack:
                self._construct(stack, args, given)
            self._describe(**given)
            self.has_stepped = False
            self._num_unscored = 0
            # metrics of windows by the step that trains them
            self._logged_later: dict[int, dict[str, list[float]]] = {}
            self._collator = None
            self._add_base()

    def _describe(
        self,
        reward_funcs: Any = None,
        tools: Any = None,
        environment_factory: Any = None,
        **given: Any,
    ) -> None:
        """Set what `TrainerBase` promises of a trainer, and TRL's asynchronous one leaves to its
        worker."""
        functions = reward_funcs if isinstance(reward_funcs, list | tuple) else [reward_funcs]
        self.reward_funcs = [function for function in functions if function is not None]
        self.reward_func_names = [*map(get_callable_name, self.reward_funcs)]
        self.tools, self.rollout_func = tools or [], None
        several = isinstance(environment_factory, dict)
        factories = environment_factory if several else {None: environment_factory}
        self.environment_factories = factories if environment_factory else {}
        for kind in dict.fromkeys(type(make()) for make in self.environment_factories.values()):
            if hasattr(kind, "get_reward"):  # one more reward, as in TRL's worker
                self.reward_funcs.append(_score_environment)
                self.reward_func_names.append(kind.__name__)
        self.reward_weights = torch.ones(len(self.reward_funcs))
        self.num_generations = self.args.num_generations
        self.max_completion_length = self.args.max_completion_length

    @classmethod
    def of_recipe(cls, script: Any, model_args: Any, **given: Any) -> "MinerAsyncGRPOTrainer":
        """Return the trainer of a recipe, `script` and TRL's `model_args`, after a check of what
        only the synchronous one can do; `given` is for the trainer."""
        args, in_turns = given["args"], bool(script.tools or script.environment_factory)
        wrong = {
            "max_steps, because an epoch's steps are not known. Set max_steps": args.max_steps < 1,
            "no rollout_func: its worker generates. Leave rollout_func out": (
                script.rollout_func is not None
            ),
            "16 bits or more. Leave load_in_4bit and load_in_8bit out": (
                model_args.load_in_4bit or model_args.load_in_8bit
            ),
            "no judge_workers and judge_seconds: its worker grades with the defaults. Leave them"
            " out": (script.judge_workers is not None or script.judge_seconds != CPU_SECONDS),
            "no held_out beside tools. Set held_out to 0": script.held_out and in_turns,
            "no tool_seconds: its worker ends no call. Leave tool_seconds out": (
                script.tool_seconds != TOOL_SECONDS
            ),
            "no attn_implementation: it has its own. Leave attn_implementation out": (
                model_args.attn_implementation is not None
            ),
        }
        for rule in (rule for rule, is_wrong in wrong.items() if is_wrong):
            raise ValueError(f"asynchronous: true needs {rule}.")
        args.model_init_kwargs.pop("attn_implementation")
        # the worker's process gets them by name; their time limit is for a main thread
        if "tools" in given:
            given["tools"] = [tool.__wrapped__ for tool in given["tools"]]
        # TRL's worker takes the rows in their order
        if isinstance(given["train_dataset"], Dataset):
            given["train_dataset"] = given["train_dataset"].shuffle(seed=args.seed)
        return cls(**given)

    def _construct(
        self, stack: ExitStack, args: MinerAsyncGRPOConfig, given: dict[str, Any]
    ) -> None:
        """Call TRL's constructor with our rollout worker in the place of its own, and on any
        device."""
        worker: Any = TextWorker
        self._asks_server = args.use_vllm and not given.get("rollout_worker")
        if not (args.use_vllm or given.get("rollout_worker") or given.get("weight_transfer")):
            given["weight_transfer"] = FileTransfer()
            worker = partial(LocalWorker, weights=given["weight_transfer"].path)
        # TRL's constructor derives what a worker is made with, and names the class itself
        trls: dict[str, Any] = AsyncGRPOTrainer.__init__.__globals__
        stack.enter_context(patch.dict(trls, AsyncRolloutWorker=worker))
        if not torch.cuda.is_available():  # which is asked for a name
            stack.enter_context(patch.dict(trls, get_peak_flops_per_device=lambda *_: None))
        super().__init__(**given)
        if not runs_tree_kernel():
            AttentionInterface.register(TREE_ATTENTION, tree_attention_anywhere)
            if self.accelerator.is_main_process:
                logger.warning(
                    "TRL's attention kernel needs a Hopper GPU, and there is none: attention is"
                    " computed segment by segment in plain torch. It is exact and slow, meant for"
                    " tests and small models."
                )

    def get_train_dataloader(self) -> Any:
        if self._asks_server and self.accelerator.is_main_process:
            url = self.args.vllm_server_base_url
            mode = logprobs_mode(url)  # None: it does not say; the first step looks at the numbers
            if mode is not None and (why := wrong_logprobs(url, mode, self.args.temperature)):
                raise ValueError(why)
        if self.accelerator.is_main_process:
            is_ours = isinstance(self.rollout_worker, TextWorker)
            self.rollout_queue = Taken(
                self.rollout_worker.rollout_buffer, of_another_process=is_ours
            )
        loader: Any = super().get_train_dataloader()
        if self.accelerator.is_main_process:
            planner: Any = loader.dataset
            planner.dataset = Windows(self, planner.dataset, self.rollout_queue)
            # accelerate's wrapper takes a collate_fn, too, and never calls it
            inner: Any = loader.base_dataloader
            self._collator = inner.collate_fn = TokenAdvantages(inner.collate_fn)
        return loader

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train: see `RunTrainer`. A second training of one trainer begins with the first prompt,
        or behind the checkpoint that it resumes from."""
        self._trained_groups.clear()
        self._last_groups_trained = 0
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, _TrainBeginCallback):
                callback._fired = False  # the worker has ended with the training before
        return super().train(*args, **kwargs)

    def pass_over(self, group_id: int) -> None:
        """Count a prompt group as done that is not trained, so that a resumed run goes on behind
        it."""
        if group_id not in self._trained_groups:
            self._trained_groups.add(group_id)
            self._last_groups_trained += 1  # of which TRL logs the growth

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> tuple[list[Any], Any]:
        """Return the micro-batches of an optimizer step, of whose tokens the loss is the mean."""
        batches, num_items = super().get_batch_samples(*args, **kwargs)
        return by_tokens_of_the_step(batches), num_items

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        if self.accelerator.is_main_process and not (self._collator and self._collator.num_batches):
            raise RuntimeError(
                "The advantages of tokens must reach the loss: TRL or accelerate has not called"
                " what puts them there. Use the versions that trl_miner's setup.cfg names."
            )
        self._log_windows(self.state.global_step + 1)
        with self.phase("training step"):
            loss: Tensor = super().training_step(*args, **kwargs)
        if not self.has_stepped:
            self._compare_with_policy(self._metrics["train"].get("kl", []))
        self.has_stepped = True
        return loss

    def _compare_with_policy(self, kl: list[float]) -> None:
        """Warn where rollouts of the policy as it is, those of the first step, have other log-probs
        than its own."""
        if kl and kl[0] > SUSPICIOUS_KL and self.accelerator.is_main_process:
            logger.warning(
                "The log-probs of the first rollouts are not the policy's: their KL divergence is"
                f" {kl[0]:.2g} nats a token, and rounding explains less than {SUSPICIOUS_KL:g}."
                f" Look whether the server was started with {LOGPROBS_FLAG}, has the model's"
                f" weights, and samples at temperature {self.args.temperature:g}."
            )

    def estimate_window(self, rollouts: list[AsyncRollout], num_before: int) -> list[Tensor]:
        """Return the advantages of the trained tokens of each rollout of a window, and log what
        they are, with the step that trains it: the loader is one ahead.

        Args:
            rollouts: Of the window, whole groups.
            num_before: Rollouts of this training's windows before.
        """
        if num_before == 0:
            self._first_step = self.state.global_step
            self._logged_later.clear()
        step = self._first_step + num_before // len(rollouts) + 1
        with self.catching_metrics() as caught:
            advantages = self._estimate_window(rollouts, step)
        self._logged_later[step] = caught["train"]
        return advantages

    def _log_windows(self, step: int) -> None:
        """Log what the windows are that are trained up to a step."""
        for due in [due for due in self._logged_later if due <= step]:
            for name, values in self._logged_later.pop(due).items():
                # TRL logs the mean of what it finds, and a running total is the last
                before = [] if name.endswith("_total") else self._metrics["train"][name]
                self._metrics["train"][name] = [*before, *values]

    def _estimate_window(self, rollouts: list[AsyncRollout], step: int) -> list[Tensor]:
        start, args, totals = time.perf_counter(), self.args, self.totals
        total_N = torch.tensor([rollout.reward for rollout in rollouts], dtype=torch.float32)
        rewards_NF = self._rewards(rollouts, total_N)
        verifier_rewards_N = self.verifier.rewards(rewards_NF)
        grpo_N = torch.tensor([rollout.advantage for rollout in rollouts], dtype=torch.float32)
        self._watch.observe(rewards_NF)
        self._check_scored(total_N)
        kinds, rewards_N, advantages_N = self._sort_groups(total_N, grpo_N, verifier_rewards_N)
        mask_NT = _pad([torch.ones(len(rollout.logps)) for rollout in rollouts])
        # all that the server tells
        scores = {"old_logps": _pad([rollout.logps for rollout in rollouts]), "mask": mask_NT}
        tokenizer: Any = getattr(self.processing_class, "tokenizer", self.processing_class)
        batch = Rollouts(
            rewards_N,
            advantages_N,
            mask_NT,
            kinds,
            args.num_generations,
            lambda *_: scores,
            correct=partial(correct_rollouts, verifier_rewards_N, args.correct_threshold),
            prompt_keys=lambda: torch.tensor([rollout.prompt_key for rollout in rollouts]),
            texts=lambda: [
                tokenizer.decode(rollout.tokens, skip_special_tokens=True) for rollout in rollouts
            ],
            seed=args.seed * 2**40 + totals.generated,
        )
        result = estimate(args.composition, batch, args.knobs)
        totals.generated += len(rollouts)
        totals.tokens += int(mask_NT.sum())
        self._log_estimate(kinds, advantages_N, result, time.perf_counter() - start)
        advantages = [
            result.advantages_BT[i, : len(rollout.logps)] for i, rollout in enumerate(rollouts)
        ]
        self.tell(
            ScoredBatch(
                step=step,
                steps=range(step, step + 1),
                rows=(),
                outcomes=PromptOutcomes(args.num_generations),
                rollouts=replace(batch, rewards_N=total_N, advantages_N=grpo_N),
                verifier_rewards_N=verifier_rewards_N,
                estimate=result,
                token_rows=lambda is_chosen_N: [
                    {"row": i, **rollouts[i].record(advantages[i])}
                    for i in is_chosen_N.nonzero().squeeze(1).tolist()
                ],
            )
        )
        return advantages

    def _check_scored(self, total_N: Tensor) -> None:
        """Raise RewardError if no rollout of several windows in a row has a reward."""
        self._num_unscored = 0 if total_N.isfinite().any() else self._num_unscored + 1
        if self._num_unscored == UNSCORED_WINDOWS:
            raise RewardError(
                f"{' and '.join(self.reward_func_names)} returned None or NaN for all"
                f" {UNSCORED_WINDOWS * len(total_N)} rollouts of {UNSCORED_WINDOWS} windows in a"
                " row, so that nothing is learned. Look at the column that the reward function"
                " compares with, or at what it returns None for."
            )

    def _rewards(self, rollouts: list[AsyncRollout], total_N: Tensor) -> Tensor:
        """Return (N, F) the rewards by function; the total one where the worker tells no others."""
        if not any(rollout.rewards for rollout in rollouts) and len(self.reward_func_names) == 1:
            return total_N.unsqueeze(1)
        table = [
            [rollout.rewards.get(name, torch.nan) for name in self.reward_func_names]
            for rollout in rollouts
        ]
        rewards_NF = torch.tensor(table, dtype=torch.float32)
        check_rewards(self.reward_func_names, rewards_NF)
        return rewards_NF

    def sample_held_out(
        self, rows: list[dict[str, Any]], num_samples: int, seed: int, sampler: Any
    ) -> tuple[Any, Any, dict[str, Any]]:
        """Return completions of prompts as the reward functions see them in training: see
        `MinerGRPOTrainer`."""
        tokenizer: Any = self.processing_class
        ids = [token_ids(row["prompt"], tokenizer, self.args.chat_template_kwargs) for row in rows]
        config = self.accelerator.unwrap_model(self.model).config
        attention = config._attn_implementation
        config._attn_implementation = "sdpa"  # that of TRL's trees needs the places of a packed row
        try:
            with self.evaluating():
                sampled = sampler(ids)
        finally:
            config._attn_implementation = attention
        texts = tokenizer.batch_decode(sampled, skip_special_tokens=True)
        completions = [
            text if isinstance(row["prompt"], str) else [{"role": "assistant", "content": text}]
            for row, text in zip(rows, texts, strict=True)
        ]
        return completions, sampled, {}


def _score_environment(**columns: Any) -> Any:
    """Stand for the reward of an environment, which the worker alone has."""
    raise ValueError(
        "Held-out problems cannot be scored by an environment: its rewards are of the worker's"
        " rollouts."
    )


def _pad(rows: list[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
