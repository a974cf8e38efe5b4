"""How long a training on GPUs may take, as a range, and what that may cost.

Arithmetic, not a measurement: each bound takes the assumptions below at one of their ends.
"""

import math
from dataclasses import dataclass
from typing import Any

from .context import Context

# The assumptions, from the fast end to the slow one.
ANSWER_SHARE = 0.2, 1.0  # of max_completion_length, that an answer has
FLOPS = 1.5e14, 3e13  # that a GPU does in a second of training
BANDWIDTH = 3e12, 6e11  # bytes of weights that it reads in a second of sampling
VLLM_SECONDS, TRANSFORMERS_SECONDS = (0.004, 0.012), (0.02, 0.04)  # of a token, besides
VLLM_ROWS = 256  # answers that vLLM samples at once on a GPU
FLOPS_PER_TOKEN = 10  # and parameter: 2 for old log-probs, 8 with gradient checkpointing


@dataclass(frozen=True)
class Hours:
    """A range of hours, from the fast end to the slow one."""

    training: tuple[float, float]
    scoring: tuple[float, float]
    gpus: int
    steps: int

    def bound(self, end: int) -> float:
        return self.training[end] + self.scoring[end]


def estimate_hours(context: Context) -> Hours | None:
    """Return how long the training of a plan takes; None: on a CPU, or its steps are not known.

    Raises:
        OSError: The model's sizes cannot be known here.
    """
    args, config, *_ = context.parsed[0]
    gpus = context.plan.train_gpus
    if not gpus or config.max_steps < 1:
        return None
    ends = [_hours(context, args, config, end) for end in (0, 1)]
    training, scoring = zip(*ends, strict=True)
    in_use = len({*gpus, *context.plan.server_gpus})
    return Hours(training, scoring, in_use, config.max_steps)


def _hours(context: Context, args: Any, config: Any, end: int) -> tuple[float, float]:
    """Return the hours of training and of scoring at one end of the assumptions."""
    parameters, processes = context.shape.parameters, context.processes
    tokens = ANSWER_SHARE[end] * config.max_completion_length
    reading = 2 * parameters / BANDWIDTH[end]
    by_vllm, by_transformers = VLLM_SECONDS[end] + reading, TRANSFORMERS_SECONDS[end] + reading
    rollouts = config.generation_batch_size
    if config.use_vllm:
        samplers = len(context.plan.server_gpus) or processes
        generation = math.ceil(rollouts / samplers / VLLM_ROWS) * tokens * by_vllm
    else:
        generation = tokens * by_transformers
    update = FLOPS_PER_TOKEN * parameters * rollouts * tokens / processes / FLOPS[end]
    # TRL counts micro-batches: of a generation, and of an optimizer step
    per_generation = config.steps_per_generation / config.gradient_accumulation_steps
    batches = config.max_steps / per_generation / config.num_iterations
    scored = _scored(args) * max(args.score_samples, 1) / processes
    times = 2 + (config.max_steps // args.score_steps if args.score_steps else 0)
    # an answer that is not cut off ends sooner, but its batch waits for the longest
    longest = max(ANSWER_SHARE[end], 0.5) * config.max_completion_length
    scoring = times * math.ceil(scored / args.score_batch_size) * longest * by_transformers
    update *= config.num_iterations
    return batches * (generation + update) / 3600, scoring / 3600


def _scored(args: Any) -> float:
    """Return the number of held-out problems; of a share or a benchmark a hundred stand for it."""
    if not args.held_out:
        return 0
    return args.held_out_size if args.held_out_size >= 1 else 100


def lines(context: Context, price: float | None) -> list[str]:
    """Return what doctor says of the time, and of the cost at a price per GPU and hour."""
    hours = estimate_hours(context)
    if hours is None:
        return [
            "Time: not estimated, as it trains on a CPU or max_steps is not set. Train three steps"
            " with --max_steps 3: the log has the seconds of a step."
        ]
    low, high = hours.bound(0), hours.bound(1)
    length = context.settings.max_completion_length
    found = [
        f"Time: {low:.2g} to {high:.2g} hours for {hours.steps} steps on {hours.gpus} GPU(s), of"
        f" which {hours.scoring[0]:.2g} to {hours.scoring[1]:.2g} are scoring. By arithmetic, with"
        f" answers of {ANSWER_SHARE[0] * length:.0f} to {length} tokens, {FLOPS[1] / 1e12:.0f} to"
        f" {FLOPS[0] / 1e12:.0f} TFLOP/s and {BANDWIDTH[1] / 1e12:g} to {BANDWIDTH[0] / 1e12:g}"
        " TB/s of a GPU. The step_time of the first steps says it better."
    ]
    if price is not None:
        least, most = (value * hours.gpus * price for value in (low, high))
        found.append(f"Cost: {least:.2g} to {most:.2g}, at {price:g} for a GPU and hour.")
    return found
