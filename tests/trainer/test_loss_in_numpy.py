"""One real step of the trainer against MINER's loss and its gradient, written out in numpy."""

import numpy as np
import torch
from harness import build_trainer, fixed_rollouts
from transformers import AutoModelForCausalLM

RATE, GAMMA, LAMBDA = 0.5, 2.0, 1.5e-3


def rows_of(model, output):
    """Yield of each row the head's inputs, the sampled tokens, and softmax over all tokens, where
    nothing is padded."""
    for i in range(len(output["prompt_ids"])):
        prompt = output["prompt_ids"][i, output["prompt_mask"][i].bool()]
        completion = output["completion_ids"][i, output["completion_mask"][i].bool()]
        ids = torch.cat([prompt, completion])[None]
        with torch.no_grad():
            hidden = model.model(ids).last_hidden_state[0, len(prompt) - 1 : -1].double().numpy()
        logits = hidden @ model.lm_head.weight.detach().double().numpy().T
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        yield hidden, completion.numpy(), shares / shares.sum(axis=1, keepdims=True)


def test_a_step_of_miner_is_the_papers(policy, tmp_path):
    trainer = build_trainer(
        policy,
        tmp_path,
        more={"rollout_func": fixed_rollouts},
        optim="sgd",
        learning_rate=RATE,
        max_grad_norm=0.0,
        max_steps=1,
        lr_scheduler_type="constant",
    )
    trainer.train()
    (batch,) = trainer.batches
    model = AutoModelForCausalLM.from_pretrained(policy)
    rows = [*rows_of(model, batch.output)]
    logps = [np.log(p[np.arange(len(ids)), ids]) for _, ids, p in rows]
    lengths = np.array([len(logp) for logp in logps])

    # GRPO's advantages, and which groups are all right: their rewards are 1 (equation 4)
    rewards_PG = batch.rollouts.rewards_N.double().numpy().reshape(-1, 4)
    deviations = rewards_PG.std(axis=1, ddof=1, keepdims=True)
    grpo = ((rewards_PG - rewards_PG.mean(axis=1, keepdims=True)) / (deviations + 1e-4)).ravel()
    is_right = np.repeat((rewards_PG == 1).all(axis=1), 4)
    assert is_right.any() and (grpo != 0).any()

    # MINER: how unsure of a completion (5), more than of the others (6), by token (7), capped (9)
    unsure = np.array([-logp.mean() for logp in logps]).reshape(-1, 4)
    mined = np.maximum(unsure - unsure.mean(axis=1, keepdims=True), 0).ravel() * is_right
    weights = [(1 - np.exp(logp)) ** GAMMA for logp in logps]
    tau_ref = (np.abs(grpo) * lengths)[~is_right].sum()
    tau_pos = sum(a * weight.sum() for a, weight in zip(mined, weights, strict=True))
    scale = min(1.0, LAMBDA * tau_ref / tau_pos)
    advantages = [grpo[i] + scale * mined[i] * weight for i, weight in enumerate(weights)]

    # DAPO's loss at a ratio of 1: -A, over all tokens of the batch; its gradient in the head
    gradient = 0.0
    for (hidden, ids, shares), advantage in zip(rows, advantages, strict=True):
        errors = shares.copy()
        errors[np.arange(len(ids)), ids] -= 1
        gradient = gradient + (errors * advantage[:, None]).T @ hidden / lengths.sum()
    moved = (model.lm_head.weight - trainer.model.lm_head.weight).detach().double().numpy() / RATE
    assert np.abs(moved - gradient).max() <= 1e-5 * np.abs(gradient).max()
    loss = -sum(advantage.sum() for advantage in advantages) / lengths.sum()
    assert abs(trainer.state.log_history[0]["loss"] - loss) <= 1e-6
