"""Samples of transformers end where they should, and depend on the seed of their batch alone."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from trl_miner.evaluation.sampling import sample_tokens

PROMPTS = [[5, 6, 7], [8, 9], [10, 11, 12, 13], [5, 6, 7]]


@pytest.fixture(scope="module")
def draw(policy):
    """Return what samples prompts with a seed, as the model's own settings say."""
    model, tokenizer = (
        each.from_pretrained(policy) for each in (AutoModelForCausalLM, AutoTokenizer)
    )

    def sample(prompts, seed, limit=12):
        config = GenerationConfig(
            do_sample=True, top_k=0, max_new_tokens=limit, pad_token_id=tokenizer.pad_token_id,
            eos_token_id=model.generation_config.eos_token_id,
        )  # fmt: skip
        return sample_tokens(model, tokenizer, prompts, config, seed), {*config.eos_token_id}

    return sample


def test_samples_depend_on_the_seed_alone(draw):
    first, _ = draw(PROMPTS, 1)
    torch.rand(3)
    assert draw(PROMPTS, 1)[0] == first != draw(PROMPTS, 2)[0]
    assert first[0] != first[3]  # the same prompt at another place
    assert [ids[:5] for ids in first] == [ids[:5] for ids in draw(PROMPTS, 1, limit=5)[0]]


def test_a_sample_ends_at_the_first_end_or_at_the_limit(draw):
    found, ends = draw(PROMPTS * 10, 0, limit=10)
    for ids in found:
        assert ends.isdisjoint(ids[:-1]) and (ids[-1] in ends or len(ids) == 10)
    assert {ids[-1] in ends for ids in found} == {True, False}
