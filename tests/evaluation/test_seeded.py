"""A sample depends on its seed, its prompt and its number alone, and comes from the policy."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from trl_miner.evaluation.seeded import Race, sample_seed, sample_tokens


@pytest.fixture(scope="module")
def model(policy):
    return AutoModelForCausalLM.from_pretrained(policy), AutoTokenizer.from_pretrained(policy)


def draw(model, prompts, seeds, **settings):
    """Return (place, tokens, is_cut) of each, in order."""
    given = {"limit": 12, "temperature": 1.0, "top_p": 1.0, "batch_size": 8} | settings
    return sorted(sample_tokens(*model, prompts, seeds, **given))


PROMPTS = [[5, 6, 7], [8, 9], [10, 11, 12, 13], [5, 6, 7]]
SEEDS = [sample_seed(0, str(place), 0) for place in range(4)]


def test_a_sample_does_not_depend_on_its_batch_or_on_what_was_drawn_before(model):
    together = draw(model, PROMPTS, SEEDS)
    torch.manual_seed(99)
    for size in (1, 2, 3):
        assert draw(model, PROMPTS, SEEDS, batch_size=size) == together
    alone = [
        draw(model, [prompt], [seed])[0][1:] for prompt, seed in zip(PROMPTS, SEEDS, strict=True)
    ]
    assert alone == [one[1:] for one in together]
    assert together[0][1] != together[3][1]  # the same prompt with another seed


def test_drawing_takes_nothing_from_the_random_state_of_torch(model):
    before = torch.get_rng_state()
    draw(model, PROMPTS, SEEDS)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_longer_limit_gives_a_longer_sample_that_begins_alike(model):
    pairs = zip(draw(model, PROMPTS, SEEDS, limit=5), draw(model, PROMPTS, SEEDS), strict=True)
    assert all(long[1][:5] == short[1] for short, long in pairs)


def test_a_sample_ends_at_the_first_end_and_says_if_it_was_cut(model):
    ends = {*model[0].generation_config.eos_token_id}
    found = draw(model, PROMPTS * 10, [*range(40)], limit=10)
    for _, tokens, is_cut in found:
        assert ends.isdisjoint(tokens[:-1]) and is_cut == (tokens[-1] not in ends)
        assert len(tokens) == 10 or not is_cut
    assert {is_cut for *_, is_cut in found} == {True, False}


def test_samples_come_from_the_policy():
    """4,000 draws of shares 0.5, 0.3, 0.2: a count has a standard deviation of at most 32."""
    logits = torch.tensor([0.5, 0.3, 0.2]).log().repeat(4000, 1)
    scores = Race([*range(4000)], "cpu")(None, logits)
    assert scores.argmax(dim=1).bincount().tolist() == pytest.approx([2000, 1200, 800], abs=120)


def test_the_models_own_settings_do_not_count_and_come_back(model):
    expected = draw(model, PROMPTS, SEEDS)
    kept = model[0].generation_config
    own = GenerationConfig(do_sample=True, top_k=1, repetition_penalty=5.0, max_new_tokens=2,
                           eos_token_id=kept.eos_token_id)  # fmt: skip
    model[0].generation_config = own
    model[0].train()
    try:
        assert draw(model, PROMPTS, SEEDS) == expected
        assert model[0].generation_config is own and model[0].training
    finally:
        model[0].generation_config = kept
        model[0].eval()


def test_temperature_0_is_greedy(model):
    assert draw(model, PROMPTS, SEEDS, temperature=0) == draw(
        model, PROMPTS, SEEDS[::-1], temperature=0
    )
