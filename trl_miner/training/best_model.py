"""The best model of a run: which metrics can choose it, and that it stands beside the last
checkpoint."""

import inspect
from typing import Any

# What TRL logs of an evaluation, beside the rewards of each function.
_ALWAYS = ("loss", "reward")
_LOGGED = "reward_std frac_reward_zero_std entropy kl num_tokens runtime".split()
_FAMILIES = ("completions/", "clip_ratio/", "sampling/", "tools/")


def check_best_metric(trainer: Any) -> None:
    """Raise ValueError if `metric_for_best_model` names nothing that an evaluation of this trainer
    logs, which would end the run at the first one."""
    args = trainer.args
    if args.eval_strategy == "no" or isinstance(trainer.eval_dataset, dict):
        return
    metric = (args.metric_for_best_model or "loss").removeprefix("eval_")
    metrics = [*_ALWAYS, *(f"rewards/{name}/mean" for name in trainer.reward_func_names)]
    metrics += sorted(trainer.held_out_metrics)
    logged = {*_LOGGED, *metrics, *(f"rewards/{name}/std" for name in trainer.reward_func_names)}
    if metric in logged or metric.startswith(_FAMILIES) or any(map(_logs, trainer.reward_funcs)):
        return
    raise ValueError(
        f"metric_for_best_model must be a metric of an evaluation: got {metric}. Set one of"
        f" {', '.join(metrics)}; pass@1 needs held-out problems."
    )


def _logs(function: Any) -> bool:
    """Return whether a reward function asks for TRL's `log_metric`, with any name."""
    return inspect.isfunction(function) and "log_metric" in inspect.signature(function).parameters


def num_checkpoints(args: Any) -> int | None:
    """Return how many checkpoints a training keeps: the best and the last, where transformers would
    delete the last at the end, and a resume begin anew."""
    limit: int | None = args.save_total_limit
    return 2 if limit == 1 and args.load_best_model_at_end else limit
