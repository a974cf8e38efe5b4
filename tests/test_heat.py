"""`prompt_selection: temperature`: solved prompts are sampled hotter, and scored at that temperature."""

import pytest
import torch
from harness import call_on_ranks, config, crc, metrics_of, mixed_reward, problems, rollouts_by_place
from torch.distributed import destroy_process_group
from transformers import AutoModelForCausalLM

from trl_miner import MinerGRPOTrainer
from trl_miner.trainer import heat
from trl_miner.trainer.checkpointing import RunState
from trl_miner.trainer.heat import HEAT
from trl_miner.trainer.prompt_selection import PromptSelection
from trl_miner.trainer.sampler_check import check_sampler

HOT = 1.5
SETTINGS = dict(prompt_selection="temperature", prompt_selection_heat=HOT, temperature=0.8, steps_per_generation=2)


class Keeping(MinerGRPOTrainer):
    """Keeps its generation batches."""

    def __init__(self, *args, **kwargs):
        self.batches = []
        super().__init__(*args, **kwargs)

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        self.batches.append(batch)
        return batch


def train(policy, folder, resume=None, **settings):
    settings = SETTINGS | dict(max_steps=8, per_device_train_batch_size=6) | settings
    trainer = Keeping(policy, mixed_reward, config(folder, ddp_find_unused_parameters=False, **settings), problems(9))
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def logps_by_hand(model, batch, heats, temperature=0.8):
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    width = batch["completion_ids"].shape[1]
    with torch.no_grad():
        logits = model(ids, attention_mask=mask).logits[:, -width - 1 : -1] / (temperature * heats.view(-1, 1, 1))
    return logits.log_softmax(dim=2).gather(2, batch["completion_ids"].unsqueeze(2)).squeeze(2)


def expected_heats(trainer, batch):
    """Prompts whose crc is a multiple of 3 are always right: hot where an earlier batch had them."""
    texts = trainer.processing_class.batch_decode(batch["prompt_ids"], skip_special_tokens=True)
    seen = trainer.__dict__.setdefault("seen", set())
    found = [HOT if text in seen and crc(text) % 3 == 0 else 1.0 for text in texts]
    seen |= {*texts}
    return torch.tensor(found)


@pytest.mark.parametrize("settings", [dict(beta=0.1), dict(advantage_estimator="grpo", dynamic_sampling=True)])
def test_each_rollout_is_scored_at_the_temperature_of_its_sampling(policy, tmp_path, settings):
    """The loss, the old policy, the reference and the sampler, with weights that stay where they are."""
    trainer = train(policy, tmp_path, learning_rate=0.0, **settings)
    reference = AutoModelForCausalLM.from_pretrained(policy)
    for batch in trainer.batches:
        own = logps_by_hand(reference, batch, batch[HEAT])
        mask = batch["completion_mask"].bool()
        with torch.no_grad():
            found = [trainer.forwards.policy(batch)[0], trainer.forwards.policy(batch, batch_size=5)[0]]
        found += [batch[name] for name in ("old_per_token_logps", "ref_per_token_logps") if name in batch]
        for logps in found:
            torch.testing.assert_close(logps[mask], own[mask], atol=1e-5, rtol=1e-5)
    assert len(found) == 3 + ("beta" in settings)
    if "beta" in settings:
        assert all(log["kl"] < 1e-9 for log in metrics_of(trainer) if "kl" in log)  # of equals


def test_a_sampler_is_compared_again_on_the_first_hot_rows(policy, tmp_path):
    """vLLM's raw log-probs are the policy's at temperature 1, until a prompt is hot. A batch has 40 tokens of one."""
    trainer = train(policy, tmp_path, learning_rate=0.0, temperature=1.0)
    state, reference = RunState.of(trainer), AutoModelForCausalLM.from_pretrained(policy)
    cold, hot = (next(b for b in trainer.batches if (b[HEAT] > 1).any() == is_hot) for is_hot in (False, True))

    def check(batch, heats):
        return check_sampler(trainer, batch, logps_by_hand(reference, batch, heats, 1.0))

    ones, state.checked_heats = torch.ones(12), set()
    assert check(cold, ones) and check(hot, ones) and state.checked_heats == {1.0}
    with pytest.raises(ValueError, match="policy's at temperature 1.5: they are .* from those at temperature 1"):
        check(hot, ones)
    state.checked_heats, state.sampler_sums = set(), {}
    assert check(hot, hot[HEAT]) and check(hot, hot[HEAT]) and state.checked_heats == {HOT}


def test_hot_are_the_prompts_that_were_solved_at_their_last_visit(policy, tmp_path):
    trainer = train(policy, tmp_path)
    found = [(batch[HEAT], expected_heats(trainer, batch)) for batch in trainer.batches]
    assert all(torch.equal(*pair) for pair in found) and any((own > 1).any() for own, _ in found)
    logged = [log["selection/hot"] for log in metrics_of(trainer) if "selection/hot" in log]
    assert logged == pytest.approx([(own > 1).float().mean().item() for own, _ in found])
    made = PromptSelection("temperature", seed=0, heat=2.0)
    assert (made.heat(None), made.heat(0), made.passes_over(0, "")) == (1.0, 1.0, False)


def test_the_sampler_draws_at_each_rows_temperature(policy, tmp_path):
    """2,000 draws of a token at T and at 3 T: the share of the likeliest within 5 standard errors of its chance."""
    args = config(tmp_path, max_completion_length=1, temperature=0.5, prompt_selection="temperature")
    trainer = MinerGRPOTrainer(policy, mixed_reward, args, problems(9))
    prompt, heats = problems(9)["prompt"][0], torch.tensor([1.0, 3.0]).repeat(2000)
    with heat.sampling(trainer, heats.tolist()):
        drawn = torch.tensor(trainer._generate([prompt] * 4000)[1])
    logits = trainer.model(torch.tensor([trainer.processing_class(prompt)["input_ids"]])).logits[0, -1]
    for factor in (1, 3):
        chance = (logits / (0.5 * factor)).softmax(dim=0)
        share = (drawn[heats == factor, 0] == chance.argmax()).float().mean()
        assert abs(share - chance.max()) < 5 * (chance.max() * (1 - chance.max()) / 2000) ** 0.5


def test_resumed_inside_a_generation_the_rest_is_the_same(policy, tmp_path):
    whole = train(policy, tmp_path / "whole", save_strategy="steps", save_steps=5)
    resumed = train(policy, tmp_path / "resumed", f"{tmp_path}/whole/checkpoint-5")
    assert metrics_of(resumed)[5:8] == metrics_of(whole)[5:8]


def train_on_a_rank(policy, folder):
    trainer = train(policy, folder, per_device_train_batch_size=3)
    gather = trainer.accelerator.gather
    for batch in trainer.batches:
        whole = {"prompt_ids": trainer.accelerator.pad_across_processes(batch["prompt_ids"], 1, 0, pad_first=True)}
        assert torch.equal(gather(batch[HEAT]), expected_heats(trainer, {"prompt_ids": gather(whole["prompt_ids"])}))
    assert any((gather(batch[HEAT]) > 1).any() for batch in trainer.batches)
    destroy_process_group()


def test_two_processes_heat_the_same_prompts(policy, tmp_path):
    call_on_ranks(2, train_on_a_rank, policy, tmp_path)


def test_a_server_is_asked_once_for_each_temperature():
    """Three prompts of two rollouts each, the second hot. The server is a function here."""
    asked = []

    def generate(prompts, n, temperature, top_p):
        asked.append((prompts, temperature))
        return {"completion_ids": [f"{p}{i}@{temperature:g}" for p in prompts for i in range(n)], "logprobs": None}

    heats = [1.0, 1.0, 2.0, 2.0, 1.0, 1.0]
    answer = heat._generate_by_request(generate, heats, ["a", "b", "c"], n=2, temperature=0.5, top_p=1)
    assert asked == [(["a", "c"], 0.5), (["b"], 1.0)]
    assert answer == {"completion_ids": ["a0@0.5", "a1@0.5", "b0@1", "b1@1", "c0@0.5", "c1@0.5"], "logprobs": None}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(advantage_estimator="ucas"), "got advantage_estimator ucas, which reads logits"),
        (dict(use_transformers_continuous_batching=True), "got use_transformers_continuous_batching"),
        (dict(generation_kwargs={"temperature": 0.5}), "got generation_kwargs with a temperature"),
        (dict(extra=dict(rollout_func=rollouts_by_place)), "got a rollout_func"),
    ],
)
def test_what_cannot_be_sampled_at_several_temperatures_is_refused(policy, tmp_path, settings, message):
    extra = settings.pop("extra", {})
    args = config(tmp_path, prompt_selection="temperature", **settings)
    with pytest.raises(ValueError, match=f"prompt_selection=temperature needs .*{message}"):
        MinerGRPOTrainer(policy, mixed_reward, args, problems(9), **extra)
