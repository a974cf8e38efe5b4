"""Held-out problems are sampled and graded as in training: the same prompts, the same parsing, the
same rollouts."""

import shutil

import pytest
from datasets import Dataset
from harness import assert_same_run, config, mixed_reward, problems
from transformers import AutoTokenizer, GenerationConfig

from trl_miner import EvaluationCallback
from trl_miner.evaluation import seeded_sampling
from trl_miner.runs.held_out import read_held_out
from trl_miner.training import RunTrainer

SUMS = [f"{number} plus {number}" for number in range(1, 9)]
CHATS = [[{"role": "user", "content": text}] for text in SUMS]
IN_CHAT = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def any_reward(completions, **kwargs):
    return [float(place % 2) for place in range(len(completions))]


def trainer_for(
    policy,
    folder,
    prompts=CHATS,
    template=IN_CHAT,
    reward=any_reward,
    rollout_func=None,
    **settings,
):
    tokenizer = AutoTokenizer.from_pretrained(policy)
    tokenizer.chat_template = template
    rows = Dataset.from_dict({"prompt": prompts * 3})
    args = config(folder, max_steps=1, **settings)
    return RunTrainer(
        policy, reward, args, rows, processing_class=tokenizer, rollout_func=rollout_func
    )


@pytest.fixture
def prompts_seen(monkeypatch):
    """The tokens of the prompts that models generate from, by `generate` or by shared forwards."""
    from transformers import Qwen3ForCausalLM

    seen, generate = [], Qwen3ForCausalLM.generate
    share = seeded_sampling.sample_shared

    def spy_on_shared(model, prompts, *args):
        seen.extend(tuple(ids) for ids in prompts)
        return share(model, prompts, *args)

    monkeypatch.setattr(seeded_sampling, "sample_shared", spy_on_shared)

    def spy(self, *args, **kwargs):
        seen.extend(
            tuple(ids[mask > 0].tolist())
            for ids, mask in zip(kwargs["input_ids"], kwargs["attention_mask"], strict=True)
        )
        return generate(self, *args, **kwargs)

    monkeypatch.setattr(Qwen3ForCausalLM, "generate", spy)
    return seen


@pytest.mark.parametrize(
    ("template", "kwargs"),
    [
        (IN_CHAT, None),
        (IN_CHAT + "{% if not enable_thinking %} ={% endif %}", {"enable_thinking": False}),
        ("{{ bos_token }}" + IN_CHAT, None),
    ],
    ids=["plain template", "settings of the template", "begin of sequence in the template"],
)
def test_held_out_prompts_are_rendered_as_in_training(
    policy, tmp_path, prompts_seen, template, kwargs
):
    trainer = trainer_for(policy, tmp_path, template=template, chat_template_kwargs=kwargs)
    tokenizer = trainer.processing_class
    tokenizer.bos_token = "="
    EvaluationCallback(trainer, Dataset.from_dict({"prompt": CHATS}), num_samples=1).record(
        "before"
    )
    held_out = {*prompts_seen}
    prompts_seen.clear()
    trainer.train()
    assert prompts_seen and {*prompts_seen} <= held_out and len(held_out) == 8
    ends = {tokenizer.decode(ids[-1]).strip() for ids in held_out}
    assert (ends == {"="}) == (kwargs is not None)


def test_held_out_answers_are_parsed_as_in_training(policy, tmp_path, monkeypatch):
    """A template of answers takes the reasoning out of the content that reward functions see."""
    seen = []

    def reward(completions, **kwargs):
        seen.append(completions[0])
        return any_reward(completions)

    trainer = trainer_for(policy, tmp_path, template=IN_CHAT + "A:", reward=reward)
    tokenizer = trainer.processing_class
    fields = {"reasoning_content": {"open": "<", "close": ">", "content": "text"}}
    fields["content"] = {"close_pattern": tokenizer.eos_token, "content": "text"}
    tokenizer.response_template = {
        "defaults": {"role": "assistant"},
        "start_anchor": "A:",
        "fields": fields,
    }
    answer = tokenizer("<7>8", add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
    callback = EvaluationCallback(trainer, Dataset.from_dict({"prompt": CHATS}), num_samples=2)
    monkeypatch.setattr(callback, "sample", lambda seeds, prompts: [answer for _ in prompts])
    callback.record("before")
    assert seen == [[{"role": "assistant", "reasoning_content": "7", "content": "8"}]]


def test_a_models_own_generation_settings_act_neither_in_rollouts_nor_in_scores(
    policy, tmp_path, caplog
):
    """Without a token twice in ten, rollouts would be others. The model keeps the setting."""

    def train(model, folder):
        trainer = RunTrainer(model, mixed_reward, config(folder, max_steps=2), problems())
        scores = EvaluationCallback(trainer, problems(4), num_samples=4)
        scores.record("before")
        trainer.train()
        return trainer, scores.held_out

    plain, expected = train(policy, tmp_path / "plain")
    assert "generation_config.json" not in caplog.text
    shutil.copytree(policy, tmp_path / "model")
    GenerationConfig(do_sample=True, no_repeat_ngram_size=1, min_p=0.5).save_pretrained(
        tmp_path / "model"
    )
    trainer, found = train(str(tmp_path / "model"), tmp_path / "own")
    assert_same_run(trainer, plain)
    assert found == expected
    assert 'sets "min_p": 0.5, "no_repeat_ngram_size": 1: rollouts and' in caplog.text
    assert trainer.model.generation_config.no_repeat_ngram_size == 1


def test_a_rollout_func_generates_for_held_out_problems_too(policy, tmp_path):
    """It answers 8 and adds a column, which decides: 4 plus 4 alone is right."""
    tokenizer = AutoTokenizer.from_pretrained(policy)
    eight = tokenizer("8", add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]

    def rollout(prompts, trainer):
        ids = [tokenizer(prompt)["input_ids"] for prompt in prompts]
        answers = {
            "completion_ids": [eight] * len(prompts),
            "logprobs": [[0.0] * len(eight)] * len(prompts),
        }
        return {
            "prompt_ids": ids,
            **answers,
            "is_even": [prompt == SUMS[3] for prompt in prompts],
            "kind": "sum",
        }

    def reward(completions, is_even, kind, **kwargs):
        return [
            float(text == "8" and even and of == "sum")
            for text, even, of in zip(completions, is_even, kind, strict=True)
        ]

    trainer = trainer_for(policy, tmp_path, SUMS, reward=reward, rollout_func=rollout)
    callback = EvaluationCallback(
        trainer, Dataset.from_dict({"prompt": SUMS}), num_samples=2, batch_size=6
    )
    assert callback.count_correct(2)[0].tolist() == [0, 0, 0, 2, 0, 0, 0, 0]


def test_answers_without_a_verdict_are_left_out_of_the_scores(policy, tmp_path, capsys):
    """Of 8 problems with 2 answers, 4 have no verdict, 2 one that is right, 2 one right and one
    wrong: Pass@1 is (1 + 1 + 1/2 + 1/2) / 4 = 0.75, and Pass@2, over the 2 problems with two
    verdicts, 1."""
    verdicts = {0: [None, None], 1: [1.0, None], 2: [1.0, 0.0], 3: [None, None]}

    def reward(prompts, completions, **kwargs):
        return [verdicts[place // 2 % 4][place % 2] for place in range(len(completions))]

    trainer = trainer_for(policy, tmp_path, SUMS, reward=reward)
    callback = EvaluationCallback(trainer, Dataset.from_dict({"prompt": SUMS}), num_samples=2)
    callback.record("after")
    assert trainer.evaluation["after"] == pytest.approx({"pass@1": 0.75, "pass@2": 1})
    assert "10 of 16 completions unscored" in capsys.readouterr().out
    assert read_held_out(tmp_path).after.num_scored == (0, 1, 2, 0, 0, 1, 2, 0)


def test_a_run_whose_answers_have_no_verdict_has_no_scores(policy, tmp_path, capsys):
    trainer = trainer_for(
        policy, tmp_path, SUMS, reward=lambda completions, **_: [None] * len(completions)
    )
    callback = EvaluationCallback(trainer, Dataset.from_dict({"prompt": SUMS}), num_samples=2)
    trainer.add_callback(callback)
    callback.record("before")
    trainer.train()
    trainer.create_model_card()
    assert trainer.evaluation == {"before": {}, "after": {}} == read_held_out(tmp_path).scores
    assert "n/a (16 of 16 completions unscored" in capsys.readouterr().out
    assert not any("eval_pass@1" in log for log in trainer.state.log_history)
    assert "pass@1" not in (tmp_path / "README.md").read_text()
    assert callback.restore(None) is False
