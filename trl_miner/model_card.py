"""What the model card says beyond TRL's: the method's settings, what became of the prompts, and the evaluation."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .config import MinerGRPOConfig

# Where TRL's template goes on after the method; tests/test_trl_contract.py watches both.
MARKER = "### Framework versions"
NO_BASE_MODEL = "[None](https://huggingface.co/None)"
_SHOWN_METRICS = {
    "reward": "Reward",
    "groups/ph": "Prompts with all rollouts right",
    "rollouts/grpo": "Rollouts with an advantage under GRPO",
    "rollouts/used": "Rollouts with an advantage in this run",
}


def describe_run(
    card: str,
    *,
    base_model: str | None,
    args: MinerGRPOConfig,
    log_history: Sequence[Mapping[str, Any]],
    evaluation: Mapping[str, Mapping[str, float]],
) -> str:
    """TRL's model card with a section on this run before its framework versions.

    Args:
        card: The card's text as TRL wrote it.
        base_model: Name or folder of the model that was trained; TRL names no model for a local folder.
        args: The `MinerGRPOConfig`.
        log_history: `trainer.state.log_history`.
        evaluation: Measured scores in [0, 1] by moment and metric, {"before": {"pass@1": 0.5}, "after": ...}. Those
            in between ("step 50") are left out.
    """
    card = card.replace(NO_BASE_MODEL, f"`{Path(base_model).name}`" if base_model else "a model made in code")
    card = card.replace('model="None"', f'model="{args.output_dir}"')
    sections = [_settings(args), _prompts(log_history), _scores(evaluation)]
    return card.replace(MARKER, "\n".join(filter(None, sections)) + f"\n{MARKER}", 1)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _settings(args: MinerGRPOConfig) -> str:
    """Which method it was, with the settings that had a part in it."""
    methods = [*args.advantage_estimator.split("+"), *({args.policy_loss} - {"clip"})]
    shown = {"advantage_estimator", "policy_loss", "correct_threshold", "correct_reward_func", "dynamic_sampling"}
    shown |= {f"{method}_{name}" for method in methods for name in args.knobs(method)}
    if args.dynamic_sampling:
        shown |= {f"dynamic_sampling_{name}" for name in args.knobs("dynamic_sampling")}
    basic = [
        "loss_type",
        "num_generations",
        "temperature",
        "learning_rate",
        "beta",
        "epsilon",
        "epsilon_high",
        "delta",
        "importance_sampling_level",
        "steps_per_generation",
        "num_iterations",
        "max_completion_length",
    ]
    rows = [[f"`{name}`", f"`{getattr(args, name)}`"] for name in [*sorted(shown), *basic]]
    return "### Settings\n\n" + _table(["Setting", "Value"], rows)


def _prompts(log_history: Sequence[Mapping[str, Any]]) -> str:
    logs = [log for log in log_history if log.get("groups/ph") is not None]
    if not logs:
        return ""
    rows = [[title, _share(logs[0].get(key)), _share(logs[-1].get(key))] for key, title in _SHOWN_METRICS.items()]
    return "### What became of the rollouts\n\n" + _table(["", "First step logged", "Last step logged"], rows)


def _scores(evaluation: Mapping[str, Mapping[str, float]]) -> str:
    evaluation = {moment: scores for moment, scores in evaluation.items() if not moment.startswith("step ")}
    if not evaluation:
        return ""
    metrics = list(dict.fromkeys(metric for scores in evaluation.values() for metric in scores))
    rows = [[metric, *(_share(scores.get(metric)) for scores in evaluation.values())] for metric in metrics]
    return "### Evaluation\n\n" + _table(["Metric", *(moment.capitalize() for moment in evaluation)], rows)


def _share(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3f}"
