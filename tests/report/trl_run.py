"""The folder of a run of TRL's own GRPOTrainer, as it writes it."""

import json

import pandas as pd


def write_trl_run(folder, rewards_SPG, *, texts=None, **metrics):
    """Write `trainer_state.json` and a completions file for each step.

    Args:
        folder: Is made.
        rewards_SPG: By step and prompt the reward of each completion.
        texts: By step and prompt the text of each completion; default: "answer STEP PLACE".
        metrics: More of each step: a value, or a list of one per step; `solution` is a column that
            the reward function logged.
    """
    (folder / "completions").mkdir(parents=True)
    history = []
    solution = metrics.pop("solution", None)
    for step, rewards_PG in enumerate(rewards_SPG, 1):
        table = pd.DataFrame(
            {
                "step": step,
                "prompt": f"prompt {step} {prompt}",
                "completion": texts[step - 1][prompt][place] if texts else f"answer {step} {place}",
                "accuracy": reward,
                "advantage": reward - sum(rewards) / len(rewards),
            }
            for prompt, rewards in enumerate(rewards_PG)
            for place, reward in enumerate(rewards)
        )
        table = table.assign(solution=solution) if solution else table
        table.to_parquet(folder / f"completions/completions_{step:05d}.parquet")
        logged = {
            "reward": table["accuracy"].mean(),
            "rewards/accuracy/mean": table["accuracy"].mean(),
            "rewards/accuracy/std": table["accuracy"].std(),
            "frac_reward_zero_std": sum(len({*each}) == 1 for each in rewards_PG) / len(rewards_PG),
            "learning_rate": 1e-6,
            "completions/clipped_ratio": 0.0,
        }
        more = {name: v[step - 1] if isinstance(v, list) else v for name, v in metrics.items()}
        history.append({"step": step, "epoch": 0.1, **logged, **more})
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    return folder
