"""Rollouts of runs that never were, with known verdicts, as lines of JSON; and logs of such runs."""

import json

import numpy as np

STEPS, PROMPTS, SIZE = 40, 8, 8


def rows_of(step, right, *, form=None, text=None, gold=None, cut=None, same=False, size=SIZE):
    """The prompts of a step as lines of rollouts; each function gets the random generator, the step,
    the place of the prompt, and how many values to return."""
    rng = np.random.default_rng(step)
    rows = []
    for place in range(PROMPTS):
        verdicts = [float(one) for one in right(rng, step, place, size)]
        prompt = f"prompt {(step * PROMPTS + place) % 100}"
        own = form(rng, step, place, size) if form else None
        for index, verdict in enumerate(verdicts):
            number = 10_000 * step + 100 * place + index
            said = text(rng, step, verdict) if text else ""
            row = {"prompt": prompt, "group": place, "step": step, "reward": verdict}
            row["completion"] = said if same else f"{number} {said}"
            row["metrics"] = {"correct": verdict}
            if own is not None:
                row["reward"] += own[index]
                row["metrics"]["form"] = own[index]
            if gold:
                row["gold"] = gold
            if cut:
                row["is_truncated"] = bool(cut(rng, verdict))
            rows.append(row)
    return rows  # fmt: skip


def write_run(folder, right=None, logs=None, steps=STEPS, **columns):
    """A run: its rollouts as lines if `right` says which are right, its log if `logs` has a function
    of the share of the steps for each metric."""
    folder.mkdir(exist_ok=True)
    if right:
        rows = [row for step in range(1, steps + 1) for row in rows_of(step, right, **columns)]
        (folder / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if logs:
        history = [
            {"step": step} | {name: value(step / steps) for name, value in logs.items()}
            for step in range(1, steps + 1)
        ]
        state = {"global_step": steps, "max_steps": steps, "log_history": history}
        (folder / "trainer_state.json").write_text(json.dumps(state))
    return folder


def at(rate):
    """Rollouts that are right with a probability: a number, or one that depends on the step."""

    def right(rng, step, place, size):
        return rng.random(size) < (rate(step / STEPS) if callable(rate) else rate)

    return right


def nothing(rng, step, place, size):
    return [0] * size


def by_prompt(rng, step, place, size):
    """Half of the prompts are solved, half are out of reach."""
    return [place % 2] * size


LOG = {
    "reward": lambda t: 0.5 + 0.01 * np.sin(99 * t),
    "entropy": lambda t: 0.5 - 0.1 * t,
    "learning_rate": lambda t: 1e-6,
    "grad_norm": lambda t: 0.3,
    "completions/clipped_ratio": lambda t: 0.02,
    "completions/max_length": lambda t: 512.0,
    "frac_reward_zero_std": lambda t: 0.3,
}
