"""The folder of a run of TRL's own GRPOTrainer, as it writes it."""

import json

import pandas as pd


def write_trl_run(folder, rewards_SPG, *, solution=None, texts=None, **metrics):
    """Write `trainer_state.json` and a completions file for each step.

    Args:
        folder: Is made.
        rewards_SPG: By step and prompt the reward of each completion.
        solution: A column that the reward function logged.
        texts: By step and prompt the text of each completion; default: "answer".
        metrics: More of each step: a value, or a list of one per step.
    """
    (folder / "completions").mkdir(parents=True)
    history = []
    for step, rewards_PG in enumerate(rewards_SPG, 1):
        rows = []
        for prompt, rewards in enumerate(rewards_PG):
            mean = sum(rewards) / len(rewards)
            for place, reward in enumerate(rewards):
                text = texts[step - 1][prompt][place] if texts else f"answer {step} {place}"
                row = {"step": step, "prompt": f"prompt {step} {prompt}", "completion": text}
                row |= {"accuracy": reward, "advantage": reward - mean}
                rows.append(row | ({"solution": solution} if solution else {}))
        table = pd.DataFrame(rows)
        table.to_parquet(folder / f"completions/completions_{step:05d}.parquet")
        equal = sum(len({*rewards}) == 1 for rewards in rewards_PG) / len(rewards_PG)
        logged = {
            "reward": table["accuracy"].mean(),
            "reward_std": float(equal < 1),  # TRL's mean of the prompts' own
            "rewards/accuracy/mean": table["accuracy"].mean(),
            "rewards/accuracy/std": table["accuracy"].std(),
            "frac_reward_zero_std": equal,
            "learning_rate": 1e-6,
            "completions/clipped_ratio": 0.0,
            "entropy": 0.5,
        }
        more = {
            name: value[step - 1] if isinstance(value, list) else value
            for name, value in metrics.items()
        }
        history.append({"step": step, "epoch": 0.1, **logged, **more})
    state = {"global_step": len(history), "log_history": history}
    (folder / "trainer_state.json").write_text(json.dumps(state))
    return folder
