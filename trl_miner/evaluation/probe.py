"""Before a training: which way would a method push success on the problems that matter?

A method adds advantages to those of GRPO. To first order, a small step along the gradient d of what
it adds changes the mean success on target problems by `<d, s>`, where s is the policy gradient of
success there. Both are measured from samples, and neither needs a training step.

# P training prompts, Q target problems, G rollouts of each, N = P*G; T padded completion tokens
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from ..common.progress import track
from ..methods import Estimate, Rollouts
from ..methods.compose import Composition, estimate
from ..methods.distributed import World
from ..methods.groups import group_kinds
from ..methods.grpo import group_relative_advantages
from ..methods.method import AdvantageEstimator

CONFIDENCE = 0.95
# One forward and backward takes rows of at most this many tokens together, prompts included.
MAX_TOKENS = 8_192
# With fewer prompts than this the interval would rest on two or three of them.
FEWEST_PROMPTS = 5
GRPO_ALONE = "GRPO itself, of mixed prompts"

Gradient = list[Tensor]  # float32, one for each trained parameter


@dataclass(frozen=True)
class Samples:
    """Rollouts of some prompts, those of one prompt adjacent, and what they earned."""

    prompts: Sequence[Sequence[int]]  # P: the tokens of each prompt
    completions: Sequence[Sequence[int]]  # N: the tokens of each rollout
    texts: Sequence[str]  # N
    rewards_N: Tensor  # weighted sums of the rewards; NaN: unscorable
    verifier_rewards_N: Tensor  # of the functions that decide what is correct; NaN: unscorable
    correct_threshold: float = 1.0

    @property
    def num_generations(self) -> int:
        """G."""
        return len(self.completions) // len(self.prompts)

    @cached_property
    def mask_NT(self) -> Tensor:
        """1 at the tokens of completions."""
        lengths_N = torch.tensor([len(tokens) for tokens in self.completions])
        return (torch.arange(int(lengths_N.max())) < lengths_N.unsqueeze(1)).long()

    @cached_property
    def is_right_PG(self) -> Tensor:
        """Whether each rollout is right; unscorable ones are not."""
        is_right_N = self.verifier_rewards_N >= self.correct_threshold
        return is_right_N.view(-1, self.num_generations)

    @property
    def pass_at_1(self) -> float:
        """The share of right rollouts."""
        return self.is_right_PG.float().mean().item()


class Policy:
    """A model whose log-probs of sampled tokens are differentiated.

    Args:
        model: A causal language model; its parameters that require a gradient count.
        pad: A token to pad with.
        temperature: Of the sampling.
        max_tokens: Of one forward and backward, prompts included; a longer row goes alone.
    """

    def __init__(
        self, model: Any, pad: int, *, temperature: float = 1.0, max_tokens: int = MAX_TOKENS
    ) -> None:
        self.model, self.pad = model, pad
        self.temperature, self.max_tokens = temperature, max_tokens
        self.parameters = [weight for weight in model.parameters() if weight.requires_grad]
        self.device = self.parameters[0].device

    def zeros(self) -> Gradient:
        """Return a gradient of zeros."""
        return [torch.zeros_like(weight, dtype=torch.float32) for weight in self.parameters]

    def chunks(self, samples: Samples, prompt: int, rows: Collection[int]) -> Iterator[list[int]]:
        """Yield those rows of a prompt, of like length together."""
        ordered = sorted(rows, key=lambda row: len(samples.completions[row]))
        chunk: list[int] = []
        for row in ordered:  # the last one of a chunk is its longest
            width = len(samples.prompts[prompt]) + len(samples.completions[row])
            if chunk and width * (len(chunk) + 1) > self.max_tokens:
                yield chunk
                chunk = []
            chunk.append(row)
        if chunk:
            yield chunk

    def score(
        self, samples: Samples, prompt: int, rows: Sequence[int], *, entropies: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Return (rows, T) log-probs of the rows' tokens, in nats, 0 at padding, and the entropies
        at them if asked for. T is that of all samples."""
        completions = [samples.completions[row] for row in rows]
        prompt_ids, length = samples.prompts[prompt], max(map(len, completions))
        ids = torch.full((len(rows), len(prompt_ids) + length), self.pad, device=self.device)
        is_real = torch.zeros_like(ids)
        for place, tokens in enumerate(completions):
            end = len(prompt_ids) + len(tokens)
            ids[place, :end] = torch.tensor([*prompt_ids, *tokens], device=self.device)
            is_real[place, :end] = 1
        logits = self.model(
            input_ids=ids, attention_mask=is_real, logits_to_keep=length + 1, use_cache=False
        ).logits[:, :-1]
        log_softmax = (logits.float() / self.temperature).log_softmax(dim=2)
        mask = is_real[:, len(prompt_ids) :]
        logps = log_softmax.gather(2, ids[:, len(prompt_ids) :, None]).squeeze(2)
        padding = (0, samples.mask_NT.shape[1] - length)
        logps = torch.nn.functional.pad(logps.masked_fill(mask == 0, 0.0), padding)
        if not entropies:
            return logps, None
        found = -(log_softmax.exp() * log_softmax).sum(dim=2)
        return logps, torch.nn.functional.pad(found.masked_fill(mask == 0, 0.0), padding)

    def gradients(
        self, samples: Samples, prompt: int, advantages: Mapping[str, Tensor]
    ) -> Iterator[tuple[str, Gradient]]:
        """Yield parts of the policy gradient of a prompt's rollouts, whose sum it is, by name.

        Args:
            samples: The rollouts.
            prompt: Its place.
            advantages: (G, T) by name; rows without an advantage cost nothing.
        """
        first = prompt * samples.num_generations
        moved = torch.stack([(values != 0).any(dim=1) for values in advantages.values()]).any(dim=0)
        rows = [first + place for place in moved.nonzero().flatten().tolist()]
        for chunk in self.chunks(samples, prompt, rows):
            logps, _ = self.score(samples, prompt, chunk)
            places = torch.tensor([row - first for row in chunk])
            parts = {name: values[places] for name, values in advantages.items()}
            parts = {name: values for name, values in parts.items() if values.any()}
            for number, (name, values) in enumerate(parts.items(), start=1):
                loss = (values.to(logps) * logps).sum()
                gradient = torch.autograd.grad(
                    loss, self.parameters, retain_graph=number < len(parts), materialize_grads=True
                )
                yield name, [part.float() for part in gradient]


@dataclass(frozen=True)
class Way:
    """A method as a recipe has it: who gives each kind of prompt its advantages, and with what.

    Raises:
        ValueError: The method needs what a probe has not.
    """

    label: str
    composition: Composition
    knobs: Callable[[AdvantageEstimator], dict[str, Any]]

    def __post_init__(self) -> None:
        for method in self.composition.methods:
            if lacking := sorted(method.scores - {"old_logps", "entropies"}):
                raise ValueError(
                    f"{method.label} needs {' and '.join(lacking)} of every token, which a probe"
                    " does not compute. Leave it out, or run a pilot: trl-miner compare RECIPE"
                    " --pilot 0.2."
                )
            if method.reads_past:
                raise ValueError(
                    f"{method.label} asks how prompts came out earlier in the training, and a probe"
                    " comes before it. Leave it out, or run a pilot: trl-miner compare RECIPE"
                    " --pilot 0.2."
                )


@dataclass(frozen=True)
class Push:
    """The effect of a method's direction on the mean success of some problems, to first order.

    Attributes:
        effect: Success gained per unit of distance that the weights move along the direction.
        low, high: Its interval, over target problems and training prompts.
        cosine: Of the direction and the gradient of success.
        problems: Q, the target problems that both succeed and fail.
        prompts: The training prompts that the direction is made of.
        needed: How many times as many of both would decide the sign, if the effect is as measured.
    """

    effect: float
    low: float
    high: float
    cosine: float
    problems: int
    prompts: int
    needed: float

    @property
    def verdict(self) -> str:
        """ "up", "down" or "cannot tell"."""
        if self.low > 0:
            return "up"
        return "down" if self.high < 0 else "cannot tell"


def probe(
    policy: Policy,
    trained: Samples,
    targets: Mapping[str, Samples],
    ways: Sequence[Way],
    *,
    per_row: bool = False,
    seed: int = 0,
) -> dict[str, dict[str, Push]]:
    """Return the push of each method on each target, by label and target.

    What a method adds to GRPO's advantages is its direction; that of the label `GRPO_ALONE` is
    GRPO's own. A method that adds nothing is left out.

    Each target goes through the model twice, and so do the training prompts, once with a backward
    for each method. Kept are a gradient for each method and one for each target.

    Args:
        policy: The model that has sampled everything.
        trained: Rollouts of training prompts.
        targets: Rollouts of problems that matter, by name.
        ways: The methods.
        per_row: Whether the loss is a mean over each rollout first (`loss_type: grpo`).
        seed: For a method that draws lots.
    """
    scores = _score(policy, trained)
    added = {way.label: _added(trained, way, scores, seed) for way in ways}
    of_grpo_N = group_relative_advantages(trained.rewards_N, trained.num_generations)
    added[GRPO_ALONE] = of_grpo_N.unsqueeze(1) * trained.mask_NT
    if per_row:
        lengths_N1 = trained.mask_NT.sum(dim=1, keepdim=True).clamp(min=1)
        added = {label: values_NT / lengths_N1 for label, values_NT in added.items()}
    added = {label: values_NT for label, values_NT in added.items() if values_NT.any()}
    success = {name: _success_gradient(policy, samples, name) for name, samples in targets.items()}
    directions, by_prompt = _directions(policy, trained, added, success)
    pushes: dict[str, dict[str, Push]] = {label: {} for label in added}
    for name, samples in targets.items():
        by_problem = _along(policy, samples, directions, name)
        for label in added:
            pushes[label][name] = _push(
                by_problem[label],
                by_prompt[label][name],
                _norm(directions[label]),
                _norm(success[name]),
            )
    return pushes


def success_advantages(is_right_PG: Tensor) -> Tensor:
    """Return (P, G) weights whose policy gradient estimates, without bias, that of each prompt's
    success: (right_i - mean right of the others) / G.

    Args:
        is_right_PG: bool, whether each rollout is right; G at least 2.
    """
    right_PG = is_right_PG.float()
    num_generations = right_PG.shape[1]
    centred_PG = right_PG - right_PG.mean(dim=1, keepdim=True)
    return centred_PG / (num_generations - 1)  # G/(G-1) for the others' mean, and 1/G


def _added(samples: Samples, way: Way, scores: Mapping[str, Tensor], seed: int) -> Tensor:
    """Return (N, T) what a method adds to GRPO's advantages."""
    rewards_N, size = samples.rewards_N, samples.num_generations
    advantages_N = group_relative_advantages(rewards_N, size)
    rollouts = Rollouts(
        rewards_N=rewards_N,
        advantages_N=advantages_N,
        mask_BT=samples.mask_NT,
        kinds=group_kinds(
            rewards_N,
            size,
            correct_threshold=samples.correct_threshold,
            verifier_rewards_N=samples.verifier_rewards_N,
            advantages_N=advantages_N,
        ),
        num_generations=size,
        score=lambda *_: scores,
        world=World(),
        prompt_keys=lambda: torch.arange(len(samples.prompts)).repeat_interleave(size),
        correct=lambda: samples.is_right_PG.flatten().float(),
        texts=lambda: [*samples.texts],
        seed=seed,
    )

    def knobs(method: AdvantageEstimator) -> dict[str, Any]:
        given = way.knobs(method)
        # A cap is a factor, which no direction has; with no mixed prompt in the sample it is 0.
        return given | ({"lambda_max": None} if "lambda_max" in given else {})

    result: Estimate = estimate(way.composition, rollouts, knobs)
    return result.advantages_BT - rollouts.to_tokens(advantages_N)


@torch.no_grad()
def _score(policy: Policy, samples: Samples) -> dict[str, Tensor]:
    """Return what `Rollouts.score` does, of all rows: (N, T) each, on the CPU."""
    logps_NT, entropies_NT = (torch.zeros(samples.mask_NT.shape) for _ in range(2))
    size = samples.num_generations
    for prompt in track(range(len(samples.prompts)), "scoring", unit="prompts"):
        for rows in policy.chunks(samples, prompt, range(prompt * size, (prompt + 1) * size)):
            logps, entropies = policy.score(samples, prompt, rows, entropies=True)
            assert entropies is not None
            logps_NT[rows], entropies_NT[rows] = logps.cpu(), entropies.cpu()
    return {"mask": samples.mask_NT, "old_logps": logps_NT, "entropies": entropies_NT}


def _success_gradient(policy: Policy, samples: Samples, name: str) -> Gradient:
    """Return the gradient of the mean success on a target's problems."""
    total = policy.zeros()
    for _, gradient in _success_parts(policy, samples, f"gradient of {name}"):
        _add(total, gradient, 1 / len(samples.prompts))
    return total


def _along(
    policy: Policy, samples: Samples, directions: Mapping[str, Gradient], name: str
) -> dict[str, np.ndarray]:
    """Return (Q,) the slope of each problem's success along each direction."""
    slopes = {label: np.zeros(len(samples.prompts)) for label in directions}
    for prompt, gradient in _success_parts(policy, samples, f"slopes of {name}"):
        for label, direction in directions.items():
            slopes[label][prompt] += _dot(gradient, direction)
    return slopes


def _success_parts(policy: Policy, samples: Samples, title: str) -> Iterator[tuple[int, Gradient]]:
    """Yield parts of the gradient of each problem's success, with its place."""
    weights_NT = success_advantages(samples.is_right_PG).flatten().unsqueeze(1) * samples.mask_NT
    for prompt in track(range(len(samples.prompts)), title, unit="problems"):
        own = {"success": _rows_of(samples, weights_NT, prompt)}
        for _, gradient in policy.gradients(samples, prompt, own):
            yield prompt, gradient


def _directions(
    policy: Policy,
    trained: Samples,
    added: Mapping[str, Tensor],
    success: Mapping[str, Gradient],
) -> tuple[dict[str, Gradient], dict[str, dict[str, np.ndarray]]]:
    """Return the direction of each method, and (P,) each training prompt's part of its product with
    the gradient of each target; NaN where a prompt has no part in the direction."""
    totals = {label: policy.zeros() for label in added}
    parts = {
        label: {name: np.full(len(trained.prompts), math.nan) for name in success}
        for label in added
    }
    for prompt in track(range(len(trained.prompts)), "directions", unit="prompts"):
        own = {label: _rows_of(trained, values_NT, prompt) for label, values_NT in added.items()}
        for label, gradient in policy.gradients(trained, prompt, own):
            _add(totals[label], gradient, 1.0)
            for name, slope in success.items():
                before = np.nan_to_num(parts[label][name][prompt])
                parts[label][name][prompt] = before + _dot(gradient, slope)
    return totals, parts


def _rows_of(samples: Samples, values_NT: Tensor, prompt: int) -> Tensor:
    size = samples.num_generations
    return values_NT[prompt * size : (prompt + 1) * size]


def _push(by_problem: np.ndarray, by_prompt: np.ndarray, norm: float, other_norm: float) -> Push:
    """Return the effect per unit step, its interval and its cosine.

    The product of the two gradients is a double sum over training prompts and target problems. The
    variance of such a sum is at most that of its sums over one side plus that of its sums over the
    other: what both draw together counts twice, so the interval is rather too wide.

    Args:
        by_problem: (Q,) each target problem's slope along the direction.
        by_prompt: (P,) each training prompt's part of the product; NaN: none.
        norm: Of the direction.
        other_norm: Of the gradient of success.
    """
    slopes_Q = by_problem / norm
    parts = by_prompt[~np.isnan(by_prompt)] / norm
    problems, prompts = int((by_problem != 0).sum()), len(parts)
    effect = float(slopes_Q.mean())
    if min(problems, prompts) < FEWEST_PROMPTS:
        return Push(effect, -math.inf, math.inf, math.nan, problems, prompts, math.inf)
    variances = (
        float(slopes_Q.var(ddof=1)) / len(slopes_Q),
        float(parts.var(ddof=1)) * prompts,
    )
    variance = sum(variances)
    # Satterthwaite's degrees of freedom, of the sides that the variance comes from
    freedom = variance**2 / sum(
        part**2 / (count - 1)
        for part, count in zip(variances, (len(slopes_Q), prompts), strict=True)
    )
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)) * math.sqrt(variance)
    needed = math.inf if effect == 0 else max(1.0, (half / effect) ** 2)
    cosine = effect / other_norm
    return Push(effect, effect - half, effect + half, cosine, problems, prompts, needed)


def _add(total: Gradient, gradient: Gradient, weight: float) -> None:
    for kept, part in zip(total, gradient, strict=True):
        kept.add_(part, alpha=weight)


def _dot(first: Gradient, second: Gradient) -> float:
    products = [(one * other).sum() for one, other in zip(first, second, strict=True)]
    return float(torch.stack(products).sum())


def _norm(gradient: Gradient) -> float:
    return math.sqrt(_dot(gradient, gradient))
