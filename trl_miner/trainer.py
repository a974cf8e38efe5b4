"""`MinerGRPOTrainer`: TRL's `GRPOTrainer` with another advantage. The only file that touches TRL's private methods;
`tests/test_trl_contract.py` watches each of them.

# N rollouts of the global generation batch, B of this process, K of its positive homogeneous (PH) ones
# F reward functions, T padded completion tokens
"""

import inspect
import logging
import math
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from trl import GRPOTrainer
from trl.models.utils import disable_gradient_checkpointing
from trl.trainer.utils import split_pixel_values_by_grid, unsplit_pixel_values_by_grid

from .config import MinerGRPOConfig
from .distributed import current_world
from .groups import GroupKinds, group_kinds
from .miner import MinerAdvantages, miner_advantages, needs_old_logps
from .model_card import describe_run

logger = logging.getLogger(__name__)

# What TRL hands to every reward function besides the columns of the data set.
_REWARD_KWARGS = {
    "prompts",
    "completions",
    "completion_ids",
    "trainer_state",
    "log_extra",
    "log_metric",
    "environments",
}
# What TRL's forward takes besides tokens. (Its signature does not say in every version: 1.14 has **kwargs.)
_MULTIMODAL_KEYS = (
    *("pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask", "spatial_shapes", "num_tiles"),
    *("image_sizes", "token_type_ids", "mm_token_type_ids", "image_position_ids"),
)
_NOT_FORWARDED = {"prompt", "completion", "completion_ids"}  # columns that TRL keeps to itself
# With these losses a sequence-level ratio makes the gradient that of the row's mean advantage.
_AVERAGED_BY_SEQUENCE_RATIO = {"grpo", "bnpo", "dr_grpo", "dapo", "sapo", "luspo"}


class MinerGRPOTrainer(GRPOTrainer):
    """
    Drop-in for [`~trl.GRPOTrainer`] that also learns from prompts whose rollouts are all right
    (https://huggingface.co/papers/2601.04731).

    Takes the arguments of [`~trl.GRPOTrainer`], with a [`MinerGRPOConfig`] as `args` (a plain `GRPOConfig` gets
    MINER's defaults). Generation, rewards, loss and evaluation are TRL's own; what changes are the advantages of a
    training batch, which become (B, T) where an all-right prompt has something to teach, and stay TRL's (B,) where
    not.

    Which rollout is correct is decided by the first reward function (`correct_reward_func` names another) at
    `correct_threshold`. The log-probs under the old policy are those that TRL computed, else those of the sampler (a
    `rollout_func`, or vLLM without importance-sampling correction), else one forward over the PH rows alone.

    Example:

    ```python
    from trl_miner import MinerGRPOConfig, MinerGRPOTrainer
    from trl_miner.rewards import math_reward

    trainer = MinerGRPOTrainer(
        model="Qwen/Qwen3-4B-Base",
        reward_funcs=math_reward,
        args=MinerGRPOConfig(output_dir="out", num_generations=16),
        train_dataset=dataset,  # columns: prompt, solution
    )
    trainer.train()
    ```
    """

    _tag_names = ["trl", "grpo", "miner"]
    _name = "MINER"
    _paper = {
        "title": "Miner: Mining Intrinsic Mastery for Data-Efficient RL in Large Reasoning Models",
        "id": "2601.04731",
        # docstyle-ignore
        "citation": textwrap.dedent("""\
            @article{jiang2026miner,
                title        = {{Miner: Mining Intrinsic Mastery for Data-Efficient RL in Large Reasoning Models}},
                author       = {Shuyang Jiang and Yuhao Wang and Ya Zhang and Yanfeng Wang and Yu Wang},
                year         = 2026,
                eprint       = {arXiv:2601.04731},
            }"""),
    }

    def __init__(self, model: Any, reward_funcs: Any = None, args: Any = None, *rest: Any, **kwargs: Any) -> None:
        args = self._own_config(model, args)
        super().__init__(model, reward_funcs, args, *rest, **kwargs)
        self.evaluation: dict[str, dict[str, float]] = {}  # {"before": {"pass@1": ...}, ...}, shown on the model card
        self._rewards_NF: Tensor | None = None
        self.correct_index = self._find_correct_reward_func()
        self._check_reward_columns()
        if (
            args.advantage_estimator == "miner"
            and args.miner_credit != "uniform"
            and args.importance_sampling_level == "sequence"
            and args.loss_type in _AVERAGED_BY_SEQUENCE_RATIO
        ):
            logger.warning(
                f"importance_sampling_level='sequence' with loss_type='{args.loss_type}' averages the advantage over "
                f"each rollout, so miner_credit='{args.miner_credit}' does not reach single tokens. Use "
                f"importance_sampling_level='token' for it, or miner_credit='uniform' to silence this."
            )

    @staticmethod
    def _own_config(model: Any, args: Any) -> MinerGRPOConfig:
        if args is None:
            name = model if isinstance(model, str) else getattr(model.config, "_name_or_path", None)
            return MinerGRPOConfig(f"{str(name or 'model').rstrip('/').split('/')[-1]}-MINER")
        return MinerGRPOConfig.from_grpo_config(args)

    def _find_correct_reward_func(self) -> int:
        wanted = self.args.correct_reward_func
        if wanted is None:
            return 0
        if wanted not in self.reward_func_names:
            raise ValueError(
                f"correct_reward_func must name one of the reward functions: got {wanted!r}, there are "
                f"{', '.join(self.reward_func_names)}."
            )
        return self.reward_func_names.index(wanted)

    def _check_reward_columns(self) -> None:
        """A missing column would show as a TypeError after the first generation, which can be an hour into a job."""
        columns = getattr(self.train_dataset, "column_names", None)
        if columns is None or self.rollout_func is not None:  # a stream's columns are unknown; a rollout adds its own
            return
        for name, function in zip(self.reward_func_names, self.reward_funcs, strict=True):
            if isinstance(function, torch.nn.Module):
                continue
            missing = _required_parameters(function) - _REWARD_KWARGS - (set(columns) - _NOT_FORWARDED)
            if missing:
                raise ValueError(
                    f"The reward function '{name}' needs the column(s) {', '.join(sorted(missing))}, which the "
                    f"training set does not have: its columns are {', '.join(columns)}. Rename or add a column."
                )

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Tensor:
        self._rewards_NF = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        return self._rewards_NF

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        return self._estimate_advantages(output) if self.model.training else output

    def _estimate_advantages(self, output: dict[str, Any]) -> dict[str, Any]:
        """TRL's batch with the advantages of the chosen estimator, in a new dict."""
        start = time.perf_counter()
        world = current_world()
        rewards_NF, self._rewards_NF = self._rewards_NF, None
        assert rewards_NF is not None, "TRL scores a batch before it returns it"
        rewards_N = (rewards_NF * self.reward_weights.to(rewards_NF)).nansum(dim=1)
        rewards_N[rewards_NF.isnan().all(dim=1)] = torch.nan  # unscorable, as TRL defines it
        verifier_rewards_N = rewards_NF[:, self.correct_index]
        advantages_N = world.gather(output["advantages"])
        kinds = group_kinds(
            rewards_N,
            self.num_generations,
            correct_threshold=self.args.correct_threshold,
            verifier_rewards_N=verifier_rewards_N,
            advantages_N=advantages_N,
        )
        teaches_N = (advantages_N != 0) & kinds.is_he_N
        if self.args.advantage_estimator == "grpo":
            self._log_rollouts(kinds, teaches_N, torch.zeros_like(teaches_N))
            return output

        knobs = dict(
            lambda_max=self.args.miner_lambda_max, credit=self.args.miner_credit, intrinsic=self.args.miner_intrinsic
        )
        mask_BT = output["completion_mask"]
        if "tool_mask" in output:
            mask_BT = mask_BT * output["tool_mask"]
        old_logps_BT = None
        if needs_old_logps(kinds, advantages_N, **knobs):
            old_logps_BT, mask_BT = self._old_logps(output, mask_BT, kinds.is_ph_N)
        mined = miner_advantages(
            rewards_N,
            old_logps_BT,
            mask_BT,
            num_generations=self.num_generations,
            gamma=self.args.miner_gamma,
            constant_reward=self.args.miner_constant_reward,
            correct_threshold=self.args.correct_threshold,
            verifier_rewards_N=verifier_rewards_N,
            advantages_N=advantages_N,
            world=world,
            **knobs,
        )
        is_mined_N = (mined.advantages_N > 0) & kinds.is_ph_N if mined.has_signal else torch.zeros_like(teaches_N)
        self._log_rollouts(kinds, teaches_N, is_mined_N)
        self._log_miner(mined, time.perf_counter() - start)
        if not mined.has_signal:
            return output  # TRL's own (B,): bit for bit GRPO, metrics included
        self._replace_logged_advantages(mined.advantages_N)
        # At padding TRL's own number: TRL 1.9 averages "luspo" over it, and so must find what it would have put there.
        advantages_BT = torch.where(mask_BT.bool(), mined.advantages_NT, output["advantages"].unsqueeze(1))
        return {**output, "advantages": advantages_BT}

    def _old_logps(self, output: dict[str, Any], mask_BT: Tensor, is_ph_N: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probs (B, T) of the sampled tokens under the old policy, right at least on PH rows, and the mask of the
        tokens that have one. The same source on every process, since it follows from the configuration."""
        if "old_per_token_logps" in output:
            return output["old_per_token_logps"], mask_BT
        if "sampling_per_token_logps" in output:
            logps_BT = output["sampling_per_token_logps"]
            is_unknown_BT = mask_BT.bool() & ~logps_BT.isfinite()  # vLLM gives NaN for a token it could not score
            num_unknown = current_world().sum(is_unknown_BT.sum()).item()
            self._metrics["train"]["miner/unscored_tokens"].append(float(num_unknown))
            is_ph_B = is_ph_N[current_world().local_slice(mask_BT.shape[0])]
            return logps_BT, mask_BT * ~(is_unknown_BT & is_ph_B.unsqueeze(1))
        return self._forward_ph_rows(output, is_ph_N), mask_BT

    @torch.no_grad()
    def _forward_ph_rows(self, output: dict[str, Any], is_ph_N: Tensor) -> Tensor:
        """One forward over this process's PH rows, in chunks of the training batch: (B, T), 0 on other rows."""
        num_rows, num_tokens = output["completion_ids"].shape
        chunk_size = self.args.per_device_train_batch_size
        rows_K = is_ph_N[current_world().local_slice(num_rows)].nonzero().squeeze(1)
        # ZeRO-3 and FSDP hang unless every process does as many forwards as the one with the most PH rows.
        num_chunks = -(-int(is_ph_N.view(-1, num_rows).sum(dim=1).max()) // chunk_size)
        num_dummies = max(0, (num_chunks - 1) * chunk_size + 1 - len(rows_K))
        batch = _select_rows(output, torch.cat([rows_K, rows_K.new_zeros(num_dummies)]))
        multimodal = {name: batch[name] for name in _MULTIMODAL_KEYS if name in batch}
        with disable_gradient_checkpointing(self.model, self.args.gradient_checkpointing_kwargs):
            logps_KT, *_ = self._get_per_token_logps_and_entropies(
                self.model,
                input_ids=torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1),
                attention_mask=torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1),
                logits_to_keep=num_tokens,
                batch_size=chunk_size,
                **multimodal,
            )
        logps_BT = logps_KT.new_zeros(num_rows, num_tokens)
        logps_BT[rows_K] = logps_KT[: len(rows_K)]
        return logps_BT

    def _log_rollouts(self, kinds: GroupKinds, teaches_N: Tensor, is_mined_N: Tensor) -> None:
        shares = torch.stack([*kinds, teaches_N, is_mined_N, teaches_N | is_mined_N]).float().mean(dim=1).tolist()
        names = ("groups/ph", "groups/he", "groups/nh", "rollouts/grpo", "rollouts/recovered", "rollouts/used")
        for name, share in zip(names, shares, strict=True):
            self._metrics["train"][name].append(share)

    def _log_miner(self, mined: MinerAdvantages, seconds: float) -> None:
        values = {
            "tau_ref": mined.tau_ref,
            "tau_pos": mined.tau_pos,
            "scale": mined.scale,
            "cap_binds": float(mined.scale < 1),
            "intrinsic_reward": mined.intrinsic_reward,
            "credit_weight": mined.credit_weight,
            "seconds": seconds,
        }
        for name, value in values.items():
            if not math.isnan(value):  # not defined in this batch, and older TRL would average it to NaN
                self._metrics["train"][f"miner/{name}"].append(value)

    def _replace_logged_advantages(self, advantages_N: Tensor) -> None:
        """TRL has logged its own advantages by now; the completions table should show what the loss will use."""
        logged = self._logs["advantages"]
        for _ in range(min(len(logged), len(advantages_N))):
            logged.pop()
        logged.extend(advantages_N.tolist())

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        super().create_model_card(*args, **kwargs)
        path = Path(self.args.output_dir) / "README.md"
        if self.is_world_process_zero() and path.is_file():
            path.write_text(
                describe_run(
                    path.read_text(encoding="utf-8"),
                    base_model=self.model.config._name_or_path,
                    args=self.args,
                    log_history=self.state.log_history,
                    evaluation=self.evaluation,
                ),
                encoding="utf-8",
            )


def _select_rows(batch: dict[str, Any], rows_K: Tensor) -> dict[str, Any]:
    """The rows of a batch as TRL returns it; images are stored apart from rows, so TRL's own helpers cut them."""
    batch = split_pixel_values_by_grid(batch)
    selected: dict[str, Any] = {}
    for name, value in batch.items():
        if isinstance(value, list):
            selected[name] = [value[row] for row in rows_K.tolist()]
        elif isinstance(value, Tensor) and value.dim() > 0:
            selected[name] = value[rows_K]
        else:
            selected[name] = value
    return unsplit_pixel_values_by_grid(selected)


def _required_parameters(function: Callable[..., Any]) -> set[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a callable that has no signature to read
        return set()
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {p.name for p in parameters if p.kind in named and p.default is inspect.Parameter.empty}
