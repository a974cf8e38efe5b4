"""Before a training: which way would its method push success on the problems that matter?

A method adds advantages to those of GRPO. To first order, a small step along the gradient d of what
it adds changes the mean success on target problems by <d, s>, where s is the policy gradient of
success there. Samples of training prompts give d, and others, of the target, give s. No step is
made.

# P training prompts, Q target problems, G completions of each, N = P*G; T padded completion tokens
# R rows of one forward, W weights
"""

import math
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from .common.progress import track
from .data.own import load_training_data
from .evaluation.in_training import EvaluationCallback
from .evaluation.sampling import sample_seed
from .methods.compose import Composition, estimate, find_composition
from .methods.groups import group_kinds
from .methods.grpo import group_relative_advantages
from .methods.rollouts import Rollouts
from .recipe.reading import Recipe
from .run.training import load_parts, make_trainer

# With fewer prompts than this the interval would rest on two or three of them.
FEWEST = 5
GRPO_ITSELF = "GRPO itself"
FIRST = (
    "With reference answers to target problems, train on them: no method for all-right prompts came"
    " near that."
)
LAST = (
    "up: it makes correct completions of the target more likely than GRPO alone: train with it. down:"
    " train with GRPO. cannot tell: raise --prompts and --problems.\n"
    "This is the sign of the first steps, and of choices that are frequent now; it can turn on the"
    " way. Guard: hold target problems out, with eval_strategy: steps, metric_for_best_model:"
    " reward and load_best_model_at_end: true."
)


@dataclass(frozen=True)
class Samples:
    """Completions of some prompts, those of one prompt adjacent."""

    prompts: list[list[int]]  # (P,) tokens
    completions: list[list[int]]  # (N,) tokens
    is_right_PG: Tensor  # bool, whether each is correct; unscorable ones are not

    @property
    def mask_NT(self) -> Tensor:
        """1 at the tokens of completions."""
        return pad_sequence([torch.ones(len(ids)) for ids in self.completions], batch_first=True)

    def __str__(self) -> str:
        right_PG, right_P = self.is_right_PG, self.is_right_PG.all(dim=1)
        return f"{right_P.sum()} of {len(right_P)} all right; Pass@1 {right_PG.float().mean():.3f}"


class Push(NamedTuple):
    """The effect of a direction on the mean success of the target, to first order."""

    effect: float  # success gained by a step of length 1 along the direction
    low: float  # of its 95 % interval, over target problems and training prompts
    high: float

    @property
    def verdict(self) -> str:
        """ "up", "down" or "cannot tell"."""
        return "up" if self.low > 0 else "down" if self.high < 0 else "cannot tell"


def forwards(trainer: Any, samples: Samples) -> Iterator[tuple[int, list[int], dict[str, Tensor]]]:
    """Yield rows of one prompt, as many as a forward of the training has: the place of the prompt,
    the rows, and (R, T) of what a method may ask of `Rollouts.score`."""
    G = samples.is_right_PG.shape[1]
    for place, prompt in enumerate(track(samples.prompts, "gradients")):
        own = torch.arange(place * G, (place + 1) * G)
        for rows in own.split(trainer.args.per_device_train_batch_size):
            sequences = [torch.tensor(prompt + samples.completions[row]) for row in rows]
            ids, mask = (
                pad_sequence(each, batch_first=True).to(trainer.accelerator.device)
                for each in (sequences, [torch.ones_like(one) for one in sequences])
            )
            T = ids.shape[1] - len(prompt)
            output = trainer.model(
                input_ids=ids, attention_mask=mask, logits_to_keep=T + 1, use_cache=False
            )
            logits = output.logits[:, :-1].float() / trainer.temperature
            logps, sampled = logits.log_softmax(dim=2), ids[:, -T:, None]
            yield (
                place,
                rows.tolist(),
                {
                    "old_logps": logps.gather(2, sampled)[..., 0],
                    "entropies": -(logps.exp() * logps).sum(dim=2),
                    "token_logits": logits.gather(2, sampled)[..., 0],
                    "self_certainty": -logps.mean(dim=2),
                },
            )


def gradients(
    trainer: Any,
    samples: Samples,
    advantages: Mapping[str, Tensor],
    along: Mapping[str, Tensor],
) -> tuple[dict[str, Tensor], dict[tuple[str, str], np.ndarray]]:
    """Return the policy gradients of advantages, and what each prompt adds to their products.

    Args:
        trainer: Whose model has sampled.
        samples: What it sampled.
        advantages: (N, T) by name.
        along: (W,) by name.

    Returns:
        (W,) float32 by the advantages' name, and (P,) by both names.
    """
    weights = [weight for weight in trainer.model.parameters() if weight.requires_grad]
    totals: dict[str, Any] = dict.fromkeys(advantages, 0)
    products = {pair: np.zeros(len(samples.prompts)) for pair in product(advantages, along)}
    for place, rows, scores in forwards(trainer, samples):
        logps = scores["old_logps"]
        for name, one in advantages.items():
            loss = (one[rows, : logps.shape[1]].to(logps) * logps).sum()
            parts = torch.autograd.grad(loss, weights, retain_graph=True, materialize_grads=True)
            gradient = torch.cat([part.flatten().float() for part in parts])
            totals[name] = totals[name] + gradient
            for other, vector in along.items():
                products[name, other][place] += float(gradient @ vector)
    return totals, products


@torch.no_grad()
def make_rollouts(
    trainer: Any, samples: Samples, rewards_N: Tensor, deciding_N: Tensor
) -> Rollouts:
    """Return samples as the methods see them.

    Args:
        trainer: Whose model has sampled.
        samples: Of training prompts.
        rewards_N: Their total rewards; NaN: unscorable.
        deciding_N: 1: correct, 0: wrong, NaN: unscorable.
    """
    mask_NT, G = samples.mask_NT, samples.is_right_PG.shape[1]
    found: dict[str, Tensor] = defaultdict(lambda: torch.zeros(mask_NT.shape))
    for _, rows, scores in forwards(trainer, samples):
        for name, values in scores.items():
            found[name][rows, : values.shape[1]] = values.cpu()
    advantages_N = group_relative_advantages(rewards_N, G)
    kinds = group_kinds(rewards_N, G, verifier_rewards_N=deciding_N, advantages_N=advantages_N)
    return Rollouts(
        rewards_N, advantages_N, deciding_N, mask_NT, kinds, G, score=lambda name, _: found[name]
    )


def success_advantages(is_right_PG: Tensor) -> Tensor:
    """Return (P, G) weights whose policy gradient estimates, without bias, that of each prompt's
    success: (correct_i - mean correct of the others) / G.

    Args:
        is_right_PG: bool, whether each completion is correct; G at least 2.
    """
    right_PG = is_right_PG.float()
    return (right_PG - right_PG.mean(dim=1, keepdim=True)) / (right_PG.shape[1] - 1)


def measure(
    trainer: Any,
    rollouts: Rollouts,
    trained: Samples,
    target: Samples,
    ways: Mapping[str, Composition],
) -> dict[str, Push]:
    """Return the push of what each method adds to GRPO, and of GRPO itself, by label. A method that
    adds nothing is left out.

    Args:
        trainer: Whose model has sampled.
        rollouts: The training prompts' samples as the methods see them.
        trained: These samples, which give the directions.
        target: Samples of the problems that matter, which give the slopes.
        ways: The methods, by label.
    """
    of_grpo_NT = rollouts.to_tokens(rollouts.advantages_N)
    added = {name: estimate(way, rollouts).advantages_BT - of_grpo_NT for name, way in ways.items()}
    added[GRPO_ITSELF] = of_grpo_NT
    if trainer.args.loss_type == "grpo":  # a mean over each completion first
        lengths_N1 = trained.mask_NT.sum(dim=1, keepdim=True).clamp(min=1)
        added = {name: one / lengths_N1 for name, one in added.items()}
    added = {name: one for name, one in added.items() if one.any()}
    weights_NT = success_advantages(target.is_right_PG).view(-1, 1) * target.mask_NT
    success = {"success": weights_NT / len(target.prompts)}
    slope, _ = gradients(trainer, target, success, {})
    directions, by_prompt = gradients(trainer, trained, added, slope)
    _, by_problem = gradients(trainer, target, success, directions)
    return {
        name: push(
            by_problem["success", name],
            by_prompt[name, "success"],
            directions[name].norm().item(),
        )
        for name in added
    }


def push(by_problem_Q: np.ndarray, by_prompt_P: np.ndarray, norm: float) -> Push:
    """Return the effect of a step of length 1 and its interval.

    The product of the two gradients is a double sum over training prompts and target problems. The
    variance of such a sum is at most that of its sums over one side plus that of its sums over the
    other: what both draw together counts twice, so the interval is rather too wide.

    Args:
        by_problem_Q: Each target problem's part of the product.
        by_prompt_P: Each training prompt's part; 0: it has none in the direction.
        norm: Of the direction.
    """
    from scipy import stats

    effect, half = by_problem_Q.sum() / norm, math.inf
    fewest = min(np.count_nonzero(side) for side in (by_problem_Q, by_prompt_P))
    if fewest >= FEWEST:
        parts = by_problem_Q, by_prompt_P[by_prompt_P != 0]
        variance = sum(len(part) * part.var(ddof=1) for part in parts)
        half = stats.t.ppf(0.975, fewest - 1) * math.sqrt(variance) / norm
    return Push(effect, effect - half, effect + half)


def probe(
    recipe: Recipe,
    *,
    target: str | None = None,
    methods: Sequence[str] = (),
    prompts: int = 48,
    problems: int = 48,
    samples: int = 16,
) -> str:
    """Measure which way methods push success on a target, and return it in words.

    Args:
        recipe: Of the training.
        target: A benchmark, or a file in the form of the recipe's own data. The recipe's own reward
            functions grade it. None: what the recipe holds out.
        methods: Names of estimators besides the recipe's; MINER without any.
        prompts: Training prompts, drawn at random.
        problems: Target problems, drawn at random.
        samples: G.

    Raises:
        ValueError: There is no target, or the samples cannot say anything.
    """
    config = recipe.config
    config.use_vllm, config.report_to, config.eval_strategy = False, [], "no"
    is_file = target is not None and Path(target).exists()
    if target is not None and not is_file:
        recipe.run.held_out = target
    parts = load_parts(recipe, is_shown=False)
    rows, trained_rows = parts.data.problems, [*parts.data.train]
    if is_file:
        own, model = replace(recipe.data, dataset_name=target), recipe.model.model_name_or_path
        rows = load_training_data(own, str(model), parts.tokenizer).train
    seen = {str(row["prompt"]) for row in trained_rows}
    rows = [row for row in rows or [] if str(row["prompt"]) not in seen]
    if not rows:
        raise ValueError("A probe needs problems that are not trained: name some with --target.")
    with TemporaryDirectory() as config.output_dir:  # TRL makes it
        trainer = make_trainer(recipe, parts)
    trainer.model.eval()
    scoring, verifier = EvaluationCallback(trainer, [], samples), trainer.verifier
    size = samples * max(1, recipe.run.score_batch_size // samples)

    def draw(
        name: str, rows: list[Any], count: int, columns: Sequence[int]
    ) -> tuple[Samples, Tensor]:
        rows = random.Random(config.seed).sample(rows, min(count, len(rows)))
        rows, prompts, completions = [row for row in rows for _ in range(samples)], [], []
        for start in range(0, len(rows), size):
            seed = sample_seed(config.seed, name, start)
            of_rows, ids = scoring.sample(rows[start : start + size], seed)
            prompts += of_rows[::samples]
            completions += ids
        rewards_NF = scoring.rewards(rows, completions, columns)
        is_right_N = verifier.is_correct(rewards_NF) == 1
        return Samples(prompts, completions, is_right_N.view(-1, samples)), rewards_NF

    every = range(len(trainer.reward_funcs))
    trained, rewards_NF = draw("training", trained_rows, prompts, every)
    rewards_N = (rewards_NF * trainer.reward_weights.cpu()).nansum(dim=1)
    rewards_N[rewards_NF.isnan().all(dim=1)] = math.nan
    aim, _ = draw("target", rows, problems, verifier.columns)
    if not success_advantages(aim.is_right_PG).any():
        raise ValueError(f"The model must solve some target problems sometimes: got {aim}.")
    rollouts = make_rollouts(trainer, trained, rewards_N, verifier.is_correct(rewards_NF))
    found = measure(trainer, rollouts, trained, aim, find_ways(config, methods))
    lines = [FIRST, f"Training prompts: {trained}", f"Target problems: {aim}"]
    for label, one in found.items():
        interval = f"{one.effect:+.3g} ({one.low:+.3g} to {one.high:+.3g})"
        lines.append(f"  {label}: {one.verdict}; {interval}")
    return "\n".join([*lines, LAST])


def find_ways(config: Any, names: Sequence[str]) -> dict[str, Composition]:
    """Return the recipe's own method and those that are named, by name. A cap is a factor, which no
    direction has."""
    find = partial(find_composition, settings=vars(config) | {"miner_lambda_max": None})
    own = " + ".join(filter(None, (config.advantage_estimator, config.all_right)))
    kwargs = config.advantage_estimator_kwargs
    ways = {own: find(config.advantage_estimator, config.all_right, kwargs=kwargs)}
    return ways | {name: find(name) for name in names or ["miner"] if name != own}
