"""Before a training: which way would its method push success on the problems that matter?

A method adds advantages to those of GRPO. To first order, a small step along the gradient d of what
it adds changes the mean success on target problems by <d, s>, where s is the policy gradient of
success there. Samples of training prompts give d, and others, of the target, give s. No step is
made.

# P training prompts, Q target problems, G completions of each, N = P*G; T padded completion tokens
# R rows of one forward, W weights
"""

import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from . import rewards
from .common.progress import track
from .data.benchmarks import BENCHMARKS
from .data.own import load_training_data
from .evaluation.in_training import EvaluationCallback
from .evaluation.seeded import sample_seed
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
    "This is the sign of the first steps, and of choices that are frequent now; it can turn on the"
    " way. Guard: hold target problems out, with eval_strategy: steps, metric_for_best_model:"
    " pass@1 and load_best_model_at_end: true."
)


@dataclass(frozen=True)
class Samples:
    """Completions of some prompts, those of one prompt adjacent."""

    prompts: list[list[int]]  # (P,) tokens
    completions: list[list[int]]  # (N,) tokens
    is_correct_N: Tensor  # 1, 0; NaN: unscorable
    size: int  # G

    @property
    def mask_NT(self) -> Tensor:
        """1 at the tokens of completions."""
        return pad_sequence([torch.ones(len(ids)) for ids in self.completions], batch_first=True)

    @property
    def is_right_PG(self) -> Tensor:
        """Whether each completion is correct; unscorable ones are not."""
        return (self.is_correct_N == 1).view(-1, self.size)

    @property
    def kinds(self) -> dict[str, int]:
        """How many prompts are all right, mixed and all wrong."""
        right_P, some_P = self.is_right_PG.all(dim=1), self.is_right_PG.any(dim=1)
        kinds = {"all right": right_P, "mixed": some_P & ~right_P, "all wrong": ~some_P}
        return {name: int(is_kind_P.sum()) for name, is_kind_P in kinds.items()}


class Push(NamedTuple):
    """The effect of a direction on the mean success of the target, to first order."""

    effect: float  # success gained by a step of length 1 along the direction
    low: float  # of its 95 % interval, over target problems and training prompts
    high: float
    cosine: float  # of the direction and the gradient of success

    @property
    def verdict(self) -> str:
        """ "up", "down" or "cannot tell"."""
        return "up" if self.low > 0 else "down" if self.high < 0 else "cannot tell"


class Policy:
    """A trainer's model, differentiated at the tokens of samples."""

    def __init__(self, trainer: Any) -> None:
        self.model, self.temperature = trainer.model.eval(), trainer.temperature
        self.weights = [weight for weight in trainer.model.parameters() if weight.requires_grad]
        self.rows = trainer.args.per_device_train_batch_size  # as many as the training's forwards

    def scores(self, samples: Samples, rows: list[int]) -> dict[str, Tensor]:
        """Return what a method may ask of `Rollouts.score`, (R, T) each, of rows of one prompt; T
        is that of these rows."""
        prompt = samples.prompts[rows[0] // samples.size]
        sequences = [torch.tensor(prompt + samples.completions[row]) for row in rows]
        ids, mask = (
            pad_sequence(each, batch_first=True).to(self.weights[0].device)
            for each in (sequences, [torch.ones_like(one) for one in sequences])
        )
        T = ids.shape[1] - len(prompt)
        output = self.model(
            input_ids=ids, attention_mask=mask, logits_to_keep=T + 1, use_cache=False
        )
        logits = output.logits[:, :-1].float() / self.temperature
        total, logps = logits.logsumexp(dim=2), logits.log_softmax(dim=2)
        own = ids[:, -T:, None]
        return {
            "old_logps": logps.gather(2, own)[..., 0],
            "entropies": -(logps.exp() * logps).sum(dim=2),
            "token_logits": logits.gather(2, own)[..., 0],
            "self_certainty": total - logits.mean(dim=2),
        }

    def chunks(self, samples: Samples, is_row_N: Tensor) -> Iterator[tuple[int, list[int]]]:
        """Yield rows that go through the model together, with the place of their prompt."""
        for place in track(range(len(samples.prompts)), "gradients"):
            first = place * samples.size
            rows_R = first + is_row_N[first : first + samples.size].nonzero().flatten()
            for rows in rows_R.split(self.rows) if len(rows_R) else ():
                yield place, rows.tolist()

    def gradients(
        self, samples: Samples, advantages: Mapping[str, Tensor]
    ) -> Iterator[tuple[int, str, Tensor]]:
        """Yield parts of the policy gradients of (N, T) advantages: the place of the prompt, the
        advantages' name, and (W,) float32. A gradient is the sum of its parts."""
        is_row_N = sum(one.abs().sum(dim=1) for one in advantages.values())
        for place, rows in self.chunks(samples, is_row_N):
            logps = self.scores(samples, rows)["old_logps"]
            for name, one in advantages.items():
                loss = (one[rows, : logps.shape[1]].to(logps) * logps).sum()
                found = torch.autograd.grad(
                    loss, self.weights, retain_graph=True, materialize_grads=True
                )
                yield place, name, torch.cat([part.flatten().float() for part in found])

    def rollouts(self, samples: Samples, rewards_N: Tensor) -> Rollouts:
        """Return samples as the methods see them.

        Args:
            samples: Of training prompts.
            rewards_N: Their total rewards; NaN: unscorable.
        """
        mask_NT, G, scores = samples.mask_NT, samples.size, {}
        with torch.no_grad():
            for _, rows in self.chunks(samples, torch.ones(len(mask_NT))):
                for name, values in self.scores(samples, rows).items():
                    whole_NT = scores.setdefault(name, torch.zeros(mask_NT.shape))
                    whole_NT[rows, : values.shape[1]] = values.cpu()
        advantages_N, is_correct_N = group_relative_advantages(rewards_N, G), samples.is_correct_N
        kinds = group_kinds(
            rewards_N, G, verifier_rewards_N=is_correct_N, advantages_N=advantages_N
        )
        return Rollouts(rewards_N, advantages_N, is_correct_N, mask_NT, kinds, G,
                        score=lambda name, _: scores[name])  # fmt: skip


def success_advantages(is_right_PG: Tensor) -> Tensor:
    """Return (P, G) weights whose policy gradient estimates, without bias, that of each prompt's
    success: (right_i - mean right of the others) / G.

    Args:
        is_right_PG: bool, whether each completion is correct; G at least 2.
    """
    right_PG = is_right_PG.float()
    return (right_PG - right_PG.mean(dim=1, keepdim=True)) / (right_PG.shape[1] - 1)


def measure(
    policy: Policy,
    trained: Samples,
    rewards_N: Tensor,
    target: Samples,
    ways: Mapping[str, Composition],
    *,
    per_row: bool = False,
) -> dict[str, Push]:
    """Return the push of what each method adds to GRPO, and of GRPO itself, by label. A method that
    adds nothing is left out.

    Args:
        policy: The model that has sampled.
        trained: Samples of training prompts, which give the directions.
        rewards_N: Their total rewards; NaN: unscorable.
        target: Samples of the problems that matter, which give the slopes.
        ways: The methods, by label.
        per_row: Whether the loss is a mean over each completion first (`loss_type: grpo`).
    """
    rollouts = policy.rollouts(trained, rewards_N)
    of_grpo_NT = rollouts.to_tokens(rollouts.advantages_N)
    added = {name: estimate(way, rollouts).advantages_BT - of_grpo_NT for name, way in ways.items()}
    lengths_N1 = trained.mask_NT.sum(dim=1, keepdim=True).clamp(min=1) if per_row else 1
    added |= {GRPO_ITSELF: of_grpo_NT}
    added = {name: one / lengths_N1 for name, one in added.items() if one.any()}
    weights_NT = success_advantages(target.is_right_PG).view(-1, 1) * target.mask_NT
    success = {"success": weights_NT / len(target.prompts)}
    slope: Any = sum(part for *_, part in policy.gradients(target, success))
    directions: dict[str, Any] = dict.fromkeys(added, 0)
    by_prompt = {name: np.zeros(len(trained.prompts)) for name in added}
    for place, name, part in policy.gradients(trained, added):
        directions[name] = directions[name] + part
        by_prompt[name][place] += float(part @ slope)
    by_problem = {name: np.zeros(len(target.prompts)) for name in added}
    for place, _, part in policy.gradients(target, success):
        for name, direction in directions.items():
            by_problem[name][place] += float(part @ direction)
    return {
        name: push(by_problem[name] / length, by_prompt[name] / length, slope.norm().item())
        for name in added
        if (length := directions[name].norm().item())
    }


def push(by_problem_Q: np.ndarray, by_prompt_P: np.ndarray, slope_norm: float) -> Push:
    """Return the effect of a step of length 1, its interval and its cosine.

    The product of the two gradients is a double sum over training prompts and target problems. The
    variance of such a sum is at most that of its sums over one side plus that of its sums over the
    other: what both draw together counts twice, so the interval is rather too wide.

    Args:
        by_problem_Q: Each target problem's part of the product.
        by_prompt_P: Each training prompt's part; 0: it has none in the direction.
        slope_norm: The norm of the gradient of success.
    """
    from scipy import stats

    effect, sides = float(by_problem_Q.sum()), (by_problem_Q, by_prompt_P[by_prompt_P != 0])
    fewest = min(np.count_nonzero(side) for side in sides)
    if fewest < FEWEST:
        return Push(effect, -math.inf, math.inf, effect / slope_norm)
    variance = sum(len(side) * side.var(ddof=1) for side in sides)
    half = float(stats.t.ppf(0.975, fewest - 1) * math.sqrt(variance))
    return Push(effect, effect - half, effect + half, effect / slope_norm)


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
        target: A benchmark, or a file: in the form of the recipe's own data, which the recipe's own
            reward functions grade. None: what the recipe holds out.
        methods: Names of estimators besides the recipe's; MINER without any.
        prompts: Training prompts, drawn at random.
        problems: Target problems, at random; of those with a level the ones beyond the training's.
        samples: G.

    Raises:
        ValueError: There is no target, or the samples cannot say anything.
    """
    config, grader = recipe.config, None
    config.use_vllm, config.report_to, config.eval_strategy = False, [], "no"
    is_file = target is not None and Path(target).exists()
    if target is not None and not is_file:
        recipe.run.held_out = target
        grader = getattr(rewards, f"{BENCHMARKS[target.partition(':')[0]].grader}_reward")
    parts = load_parts(recipe, is_shown=False)
    rows, trained_rows = parts.data.problems, [*parts.data.train]
    if is_file:
        own, model = replace(recipe.data, dataset_name=target), recipe.model.model_name_or_path
        rows = load_training_data(own, str(model), parts.tokenizer).train
    if rows is None:
        raise ValueError("A probe needs problems that matter: name some with --target.")
    trainer = make_trainer(recipe, parts)

    def draw(rows: list[Any], count: int, grader: Any = None) -> tuple[Samples, Tensor]:
        rows = random.Random(config.seed).sample(rows, min(count, len(rows)))
        scoring = EvaluationCallback(trainer, rows, samples, reward_func=grader)
        rows = [row for row in rows for _ in range(samples)]
        seeds = [sample_seed(config.seed, "probe", place) for place in range(len(rows))]
        ids, completions = scoring.sample(rows, seeds)
        found = Samples(ids[::samples], completions, scoring.grade(rows, completions), samples)
        if grader is not None:
            return found, found.is_correct_N
        found_NF = scoring.rewards(trainer.reward_funcs, rows, completions)
        rewards_N = (found_NF * trainer.reward_weights.cpu()).nansum(dim=1)
        return found, rewards_N.masked_fill(found_NF.isnan().all(dim=1), math.nan)

    trained, rewards_N = draw(trained_rows, prompts)
    aim, _ = draw(beyond([*rows], trained_rows), problems, grader)
    if aim.kinds["mixed"] < FEWEST:
        raise ValueError(
            f"The target must hold at least {FEWEST} problems that the model solves sometimes: got"
            f" {aim.kinds}. Name others with --target, or raise --samples."
        )
    per_row = config.loss_type == "grpo"
    found = measure(
        Policy(trainer), trained, rewards_N, aim, find_ways(config, methods), per_row=per_row
    )
    lines = [FIRST]
    for name, one in {"training prompts": trained, "target problems": aim}.items():
        kinds = ", ".join(f"{count} {kind}" for kind, count in one.kinds.items())
        lines.append(f"{name}: {kinds}; Pass@1 {one.is_right_PG.float().mean():.3f}")
    for label, (effect, low, high, cosine) in found.items():
        interval = f"{effect:+.3g} ({low:+.3g} to {high:+.3g})"
        lines.append(f"  {label}: {found[label].verdict}; {interval}, cosine {cosine:+.2f}")
    return "\n".join([*lines, advice(found), LAST])


def find_ways(config: Any, names: Sequence[str]) -> dict[str, Composition]:
    """Return the recipe's own method, unless it is GRPO, and those that are named, by label. A cap
    is a factor, which no direction has."""
    settings, kwargs = vars(config) | {"miner_lambda_max": None}, config.advantage_estimator_kwargs
    own = find_composition(
        config.advantage_estimator, config.all_right, kwargs=kwargs, settings=settings
    )
    found = [own, *(find_composition(name, settings=settings) for name in names or ["miner"])]
    ways = {" + ".join(method.label for method in way.methods): way for way in found}
    return {label: way for label, way in ways.items() if label != "GRPO"}


def beyond(rows: list[Any], trained: list[Any]) -> list[Any]:
    """Return the rows whose prompt is not trained, and of these the ones beyond the trained levels,
    where there are some.

    Raises:
        ValueError: All are trained.
    """
    prompts = {json.dumps(row["prompt"]) for row in trained}
    fresh = [row for row in rows if json.dumps(row["prompt"]) not in prompts]
    if not fresh:
        raise ValueError("All target problems are trained. Name others with --target.")
    levels = {row.get("level") for row in trained}
    return [row for row in fresh if row.get("level") not in levels] or fresh


def advice(found: Mapping[str, Push]) -> str:
    """Return what to do, by the first method."""
    label, verdict = next((label, one.verdict) for label, one in found.items())
    if label == GRPO_ITSELF:
        return "No method adds anything to GRPO here: leave it off, or raise --prompts."
    if verdict == "cannot tell":
        return f"This does not show which way {label} pushes: raise --prompts and --problems."
    method = label if verdict == "up" else "GRPO"
    return f"{label} pushes success on the target {verdict}: train with {method}."
