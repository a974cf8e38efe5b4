"""A small study in the format that `trl-miner compare` writes, with planted effects."""

import json

import numpy as np

# Pass@1 after training, on the trained levels. Beyond them it is .25 lower.
AFTER = {"grpo": 0.60, "miner": 0.75, "miner_wo_ac": 0.60}
RECIPES = {
    "grpo": {"advantage_estimator": "grpo"},
    "miner": {"advantage_estimator": "miner"},
    "miner_wo_ac": {"advantage_estimator": "miner", "miner_lambda_max": None},
}
LEVELS, TRAINED, SAMPLES, FINAL_SAMPLES, STEPS = 8, [1, 2, 3, 4, 5, 6], 4, 64, 60


def write_study(
    folder, *, seeds=3, problems=80, moments=4, logs=6, after=None, per_log=None, **run
):
    """Write run folders `METHOD/seedK`, and return them.

    `after` is Pass@1 after training by method, by default `AFTER`. `moments` is how often each run
    is scored, at first before training. `per_log` is called with a log's method, seed and step, and
    returns more entries for it. `run` are more entries of `training.json`.
    """
    found = []
    for method, rate in (after or AFTER).items():
        for seed in range(1, seeds + 1):
            path = folder / method / f"seed{seed}"
            path.mkdir(parents=True)
            settings = {name: str(value) for name, value in RECIPES[method].items()}
            record = {"settings": settings, "seed": seed, "optimizer_steps_per_step": 1.0} | run
            counts = scored(method, seed, rate, problems, moments)
            history = [
                logged(method, step, (per_log or (lambda *_: {}))(method, seed, step))
                for step in range(STEPS // logs, STEPS + 1, STEPS // logs)
            ]
            state = {"global_step": STEPS, "max_steps": STEPS, "log_history": history}
            for name, content in (
                ("training", record), ("compared", {"method": method}), ("held_out", counts), ("trainer_state", state)
            ):  # fmt: skip
                (path / f"{name}.json").write_text(json.dumps(content))
            found.append(path)
    return found


def counts_of(scores, last=0, problems=100):
    """Return the content of `held_out.json` that gives scores such as {"before": {"pass@1": 0.5,
    "pass@8": 0.75}};
    "after" is of step `last`."""
    moments = {}
    for name, known in scores.items():
        size = max(int(metric.partition("@")[2]) for metric in known)
        solved, right = (
            round(known[f"pass@{k}"] * problems * n) for k, n in ((size, 1), (1, size))
        )
        # the right samples, shared evenly by the problems that have any
        counts = [right // solved + (place < right % solved) for place in range(solved)] + [0] * (
            problems - solved
        )
        step = {"before": 0, "after": last}.get(name) if " " not in name else int(name.split()[1])
        moments[name] = {"step": step, "num_samples": size, "num_correct": counts}
    return {"problems": {}, "moments": moments}


def scored(method, seed, rate, problems, moments):
    """Return the content of `held_out.json`. The rate changes linearly from .5 before training to
    `rate` after it."""
    random = np.random.default_rng([seed, len(method)])
    levels = [place % LEVELS + 1 for place in range(problems)]
    hard = np.random.default_rng(1).uniform(-0.1, 0.1, problems) - 0.25 * ~np.isin(levels, TRAINED)
    of_seed, found = random.normal(0, 0.01), {}
    for at in range(moments):
        step = round(at * STEPS / (moments - 1))
        samples = FINAL_SAMPLES if step == STEPS else SAMPLES
        right = np.clip(0.5 + (rate - 0.5) * step / STEPS + hard + of_seed, 0, 1)
        name = {0: "before", STEPS: "after"}.get(step, f"step {step}")
        counts = random.binomial(samples, right).tolist()
        found[name] = {"step": step, "num_samples": samples, "num_correct": counts}
    known = {"level": levels, "trained_levels": TRAINED, "fingerprint": "f" * 64}
    return {"problems": known, "moments": found}


def logged(method, step, more):
    """Return a log: 256 rollouts of 20 tokens a step, an entropy that falls from .6 to .3, and
    `more`."""
    share = step / STEPS
    log = {
        "step": step, "reward": 0.5 + 0.4 * share, "entropy": 0.6 - 0.3 * share, "step_time": 2.0,
        "grad_norm": 0.123456 + share, "completions/mean_length": 20.0 + share, "completions/clipped_ratio": 0.0,
        "groups/ph": 0.25 + 0.5 * share, "groups/he": 0.7 - 0.5 * share, "groups/nh": 0.05,
        "rollouts/grpo": 0.7 - 0.5 * share, "rollouts/used": 0.7, "rollouts/recovered": 0.3, "num_tokens": 9e3 * step,
        "rollouts/generated_total": 256.0 * step, "rollouts/used_total": 128.0 * step,
        "rollouts/tokens_total": 5120.0 * step,
    }  # fmt: skip
    if method != "grpo":
        log |= {
            "miner/tau_pos": 3.0,
            "miner/tau_ref": 1000.0,
            "miner/scale": 0.5,
            "miner/cap_binds": 1.0 - share,
        }
        log |= {"miner/seconds": 0.02}
    return log | more
