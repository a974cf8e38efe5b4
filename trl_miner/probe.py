"""Probe a recipe: which way would its method push success on a target, before anything is trained?

`evaluation.probe` has the mathematics. This module samples what it needs, as the recipe's training
would, and says what to do.
"""

import json
import math
import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import torch
from accelerate import PartialState
from torch import Tensor

from . import grading
from .common.progress import is_quiet, track
from .common.tables import Table
from .data.prompts import token_ids
from .evaluation.generate import sample_seed
from .evaluation.probe import (
    FEWEST_PROMPTS,
    GRPO_ALONE,
    MAX_TOKENS,
    Policy,
    Push,
    Samples,
    Way,
    probe,
)
from .evaluation.seeded_sampling import sample_all
from .methods.compose import find_composition
from .methods.grpo import GRPO
from .methods.method import AdvantageEstimator
from .recipe.files import with_recipe_file
from .recipe.parsing import load_reward_funcs, make_parser
from .recipe.preview import preview_recipe
from .recipe.training_data import check_rows, load_data
from .runs.files import write_json, write_whole
from .train import build
from .trainer.prompt_keys import prompt_key
from .trainer.reward_functions import reward_list

OWN = "(the recipe's)"
MIXED = "the mixed training prompts"
CERTAINTY = "certainty"  # MINER with the opposite sign: no estimator of its own
USUAL = ("miner", "entropy", CERTAINTY)
AT_ONCE = 8  # prompts that are sampled together, and kept together if the probe is interrupted


def probe_recipe(
    arguments: Sequence[str],
    *,
    methods: Sequence[str] = (),
    prompts: int = 48,
    problems: int = 48,
    samples: int = 16,
    output: Path | None = None,
) -> "Result":
    """Measure which way methods push success on a recipe's held-out problems.

    Args:
        arguments: Of the training: `["--config", "recipe.yaml", "--learning_rate", "1e-6"]`.
            `held_out_benchmark` names other target problems.
        methods: Names of estimators besides the recipe's; `USUAL` by default.
        prompts: Training prompts, drawn at random.
        problems: Target problems: of those with a level, the ones beyond the training's levels.
        samples: Rollouts of each.
        output: A folder for the samples, so that an interrupted probe goes on, and `probe.json`.

    Raises:
        ValueError: A method needs what a probe has not, or the samples cannot say anything.
    """
    with TemporaryDirectory() as folder:
        trainer, scores = _build(arguments, folder)
    config = trainer.args
    if trainer.generates_in_turns:
        raise ValueError(
            "A probe samples answers to prompts, and this recipe has tools, environments or a"
            " rollout_func. Run a pilot instead: trl-miner compare RECIPE --pilot 0.2."
        )
    if scores.problems is None:
        raise ValueError(
            "A probe needs problems that matter: set held_out, or name some with --target."
        )
    sampler = _Sampler(trainer, samples, output, scores.batch_size)
    policy = Policy(
        sampler.model, sampler.pad, temperature=trainer.temperature, max_tokens=sampler.max_tokens
    )
    asked = ways(config, methods or USUAL)
    _check_memory(policy, len(asked))
    rows = _targets(scores.problems, trainer.train_dataset, problems, config.seed)
    trained = sampler.draw("training", _some(trainer.train_dataset, prompts, config.seed), None)
    _check_trained(trained)
    target = sampler.draw("target", rows, scores.reward_func)
    _check_target(target)
    mixed = _mixed_of(trained)
    targets = {"target": target} | ({MIXED: mixed} if mixed else {})
    pushes = probe(
        policy,
        trained,
        targets,
        asked,
        per_row=config.loss_type == "grpo",
        seed=config.seed,
    )
    result = Result(pushes, trained, target)
    if output is not None:
        write_json(output / "probe.json", result.record())
    return result


def ways(config: Any, names: Sequence[str]) -> list[Way]:
    """Return the recipe's own method, unless it is GRPO, and those that are named."""
    listed = []
    own = "" if config.estimators == (GRPO,) else " + ".join(_name_of(config))
    if own:
        listed.append(Way(f"{own} {OWN}", config.composition, config.knobs))
    for name in names:
        composition = find_composition("miner" if name == CERTAINTY else name)

        def knobs(method: AdvantageEstimator, name: str = name) -> dict[str, Any]:
            given = config.knobs(method)
            if "intrinsic" in given:  # MINER's, whatever the recipe has made of it
                given["intrinsic"] = CERTAINTY if name == CERTAINTY else "nll"
            return given

        if name != own:
            listed.append(Way(name, composition, knobs))
    return listed


def _name_of(config: Any) -> list[str]:
    names = [method.name for method in config.estimators]
    is_certain = config.miner_intrinsic == CERTAINTY
    return [CERTAINTY if name == "miner" and is_certain else name for name in names]


class Result:
    """What a probe has measured.

    Attributes:
        pushes: By method and target.
        trained: The rollouts of training prompts.
        target: Those of the target problems.
    """

    def __init__(
        self, pushes: Mapping[str, Mapping[str, Push]], trained: Samples, target: Samples
    ) -> None:
        self.pushes, self.trained, self.target = pushes, trained, target

    def record(self) -> dict[str, Any]:
        """Return the numbers for a file; infinite ones are None."""

        def numbers(push: Push) -> dict[str, Any]:
            values = {
                key: value if not isinstance(value, float) or math.isfinite(value) else None
                for key, value in asdict(push).items()
            }
            return values | {"verdict": push.verdict}

        return {
            "kinds": dict(
                zip(("all right", "mixed", "all wrong"), kinds_of(self.trained), strict=True)
            ),
            "pass@1": {"training": self.trained.pass_at_1, "target": self.target.pass_at_1},
            "methods": {
                label: {name: numbers(push) for name, push in by_target.items()}
                for label, by_target in self.pushes.items()
            },
        }

    def text(self) -> str:
        """Return the table and what to do, for a terminal."""
        return "\n".join(
            [_about(self.trained, self.target), "", self.table().markdown(), self.advice()]
        )

    def table(self) -> Table:
        """Return a row for each method."""
        rows = []
        for label, by_target in self.pushes.items():
            target, mixed = by_target["target"], by_target.get(MIXED)
            effect = f"{target.effect:+.3g} ({target.low:+.3g} to {target.high:+.3g})"
            cosine = "n/a" if math.isnan(target.cosine) else f"{target.cosine:+.2f}"
            rows.append([label, cosine, effect, target.verdict, mixed.verdict if mixed else "n/a"])
        notes = [
            "up: to train with the method makes right answers to the target problems more likely,"
            " at first; down: less likely; cannot tell: this sample does not show which (95 %).",
            "Effect: what a step of length 1 along the method's gradient adds to the share of right"
            " answers. Its sign is a forecast, its size is not: a training takes many steps.",
            f"{GRPO_ALONE}: what the methods add to. The last column asks about {MIXED} in place"
            " of the target.",
        ]
        header = ("Method", "Cosine", "Effect (95 %)", "On the target", f"On {MIXED}")
        return Table("Probe", header, rows, notes)

    def advice(self) -> str:
        """Return one line: what to do with the recipe."""
        label = next(iter(self.pushes))  # the recipe's, if it has one besides GRPO
        push = self.pushes[label]["target"]
        if label == GRPO_ALONE:
            return "To do: nothing. No method added anything to GRPO in this sample."
        better = [
            name
            for name, by_target in self.pushes.items()
            if by_target["target"].verdict == "up" and name != GRPO_ALONE
        ]
        if push.verdict == "up":
            return f"To do: leave {label} on. It pushes success on the target up."
        if push.verdict == "down":
            other = f" {better[0]} pushes it up." if better else ""
            return (
                f"To do: leave {label} off (advantage_estimator: grpo). It pushes success on the"
                f" target down.{other}"
            )
        if push.needed > 25:
            return (
                f"To do: nothing speaks for {label} or against it. A sample this size would have"
                " shown an effect that matters, so leave it off for simplicity, or run a pilot:"
                " trl-miner compare RECIPE --pilot 0.2."
            )
        times = math.ceil(push.needed)
        return (
            f"To do: probe again with {times} times as many: --prompts"
            f" {times * len(self.trained.prompts)} --problems {times * len(self.target.prompts)}."
            f" This sample cannot tell which way {label} pushes."
        )


def kinds_of(samples: Samples) -> tuple[float, float, float]:
    """Return the shares of prompts that came out all right, mixed and all wrong."""
    right_P, wrong_P = samples.is_right_PG.all(dim=1), ~samples.is_right_PG.any(dim=1)
    return (
        right_P.float().mean().item(),
        (~right_P & ~wrong_P).float().mean().item(),
        wrong_P.float().mean().item(),
    )


def _about(trained: Samples, target: Samples) -> str:
    parts = []
    for name, samples in (("training prompts", trained), ("target problems", target)):
        right, mixed, wrong = (f"{share:.0%}" for share in kinds_of(samples))
        parts.append(
            f"{len(samples.prompts)} {name} x {samples.num_generations}: {right} all right,"
            f" {mixed} mixed, {wrong} all wrong; Pass@1 {samples.pass_at_1:.3f}"
        )
    return "\n".join(parts)


def _check_memory(policy: Policy, methods: int) -> None:
    """Say how much memory the gradients take; raise ValueError where it is more than is free."""
    # Kept are those of the methods, of GRPO, of the target and of the mixed prompts; two are made.
    kept = methods + 5
    size = 4 * sum(weight.numel() for weight in policy.parameters)
    free = psutil.virtual_memory().available
    if policy.device.type == "cuda":
        free = torch.cuda.mem_get_info(policy.device)[0]
    if kept * size > free:
        raise ValueError(
            f"A probe needs {kept} gradients of {size / 1e9:.2g} GB beside the model, and"
            f" {free / 1e9:.2g} GB are free. Name one method, with --methods miner, or probe a"
            " recipe that trains an adapter (use_peft: true)."
        )
    if not is_quiet():
        print(f"Beside the model this takes {kept} gradients of {size / 1e9:.2g} GB.")


def _check_target(target: Samples) -> None:
    """Raise ValueError where no direction can be seen on the target problems."""
    right, mixed, wrong = kinds_of(target)
    if mixed * len(target.prompts) < FEWEST_PROMPTS:
        kind = "right" if right > wrong else "wrong"
        other = "harder" if right > wrong else "easier"
        raise ValueError(
            f"The target must hold problems that the model solves sometimes: of"
            f" {len(target.prompts)}, {round(mixed * len(target.prompts))} came out mixed, most all"
            f" {kind}. Name {other} ones with --target, or raise --samples."
        )


def _check_trained(trained: Samples) -> None:
    """Raise ValueError where a method for all-right prompts has nothing to act on."""
    solved = round(kinds_of(trained)[0] * len(trained.prompts))
    if solved < FEWEST_PROMPTS:
        raise ValueError(
            f"The training prompts must hold some that are all right: {solved} of"
            f" {len(trained.prompts)} are. Raise --prompts; if they stay so few, a method for"
            " all-right prompts has almost nothing to act on: leave it off."
        )


def _mixed_of(samples: Samples) -> Samples | None:
    """Return the rollouts of mixed prompts as a target of their own; None: too few."""
    is_mixed_P = samples.is_right_PG.any(dim=1) & ~samples.is_right_PG.all(dim=1)
    places = is_mixed_P.nonzero().flatten().tolist()
    if len(places) < FEWEST_PROMPTS:
        return None
    size = samples.num_generations
    rows = [row for place in places for row in range(place * size, (place + 1) * size)]
    return Samples(
        [samples.prompts[place] for place in places],
        [samples.completions[row] for row in rows],
        [samples.texts[row] for row in rows],
        samples.rewards_N[rows],
        samples.verifier_rewards_N[rows],
        samples.correct_threshold,
    )


def _some(rows: Any, count: int, seed: int) -> list[dict[str, Any]]:
    """Return some rows of a data set, drawn at random; of a stream, the first."""
    if not hasattr(rows, "__len__"):
        return [*islice(rows, count)]
    places = random.Random(f"probe {seed}").sample(range(len(rows)), min(count, len(rows)))
    return [rows[place] for place in places]


def _targets(problems: Any, trained: Any, count: int, seed: int) -> list[dict[str, Any]]:
    """Return the target problems: beyond the training's levels, where levels are known, and none
    whose prompt is trained."""
    rows = [dict(row) for row in problems]
    if hasattr(trained, "__len__"):
        keys = {prompt_key({"prompt": prompt}) for prompt in trained["prompt"]}
        fresh = [row for row in rows if prompt_key({"prompt": row["prompt"]}) not in keys]
        if len(fresh) < min(len(rows), 2 * FEWEST_PROMPTS):
            raise ValueError(
                f"The target must hold problems that are not trained: {len(rows) - len(fresh)} of"
                f" {len(rows)} are. Name others with --target."
            )
        if "level" in trained.column_names and all("level" in row for row in fresh):
            levels = {str(level) for level in trained["level"]}
            beyond = [row for row in fresh if str(row["level"]) not in levels]
            if not beyond:
                warnings.warn(
                    "The target has no problems beyond the trained levels. On such problems credit"
                    " for all-right prompts hardly shows: name harder ones with --target.",
                    stacklevel=2,
                )
            fresh = beyond or fresh
        rows = fresh
    return random.Random(f"target {seed}").sample(rows, min(count, len(rows)))


def _build(arguments: Sequence[str], folder: str) -> tuple[Any, Any]:
    """Return the recipe's trainer and what scores its held-out problems, without servers, trackers
    or pushes."""
    words = with_recipe_file(arguments)
    args, config, model_args, mixture = make_parser(words).parse_args_and_config(words)
    if args.asynchronous:
        raise ValueError("A probe takes the recipe of a synchronous training: got asynchronous.")
    config.output_dir, config.report_to = folder, []
    config.use_vllm = config.push_to_hub = False
    PartialState()
    grading.configure(args.judge_workers, args.judge_seconds)
    reward_funcs = load_reward_funcs(args, config)
    data = load_data(args, mixture, model_args, trusts=bool(config.trust_remote_code))
    check_rows(args, data)
    preview_recipe(args, config, model_args, reward_funcs, data).check()
    return build(args, config, model_args, reward_funcs, data)


class _Sampler:
    """Samples prompts with a trainer's model, and grades them with its reward functions."""

    def __init__(
        self, trainer: Any, num_samples: int, folder: Path | None, batch_size: int
    ) -> None:
        self._trainer, self._num_samples, self._folder = trainer, num_samples, folder
        self._batch_size = batch_size
        models = [f for f in trainer.reward_funcs if isinstance(f, torch.nn.Module)]
        if models:
            raise ValueError(
                "A probe grades with reward functions: got a reward model. Leave it out of"
                " reward_funcs."
            )
        self.model = trainer.model.eval()
        self._tokenizer = trainer.processing_class
        self.pad = self._tokenizer.pad_token_id or 0
        self.max_tokens = trainer.args.max_tokens_per_micro_batch or MAX_TOKENS

    def draw(
        self, name: str, rows: Sequence[Mapping[str, Any]], verifier: Callable[..., Any] | None
    ) -> Samples:
        """Return graded samples of rows; `verifier` grades in place of the training's functions."""
        trainer, size = self._trainer, self._num_samples
        kwargs = trainer.args.chat_template_kwargs
        prompts = [token_ids(row["prompt"], self._tokenizer, kwargs) for row in rows]
        completions = self._sample(name, prompts)
        texts = self._tokenizer.batch_decode(completions, skip_special_tokens=True)
        repeated = [row for row in rows for _ in range(size)]
        answers = [
            text if isinstance(row["prompt"], str) else [{"role": "assistant", "content": text}]
            for row, text in zip(repeated, texts, strict=True)
        ]
        columns = {key: [row.get(key) for row in repeated] for key in rows[0]}
        columns["prompts"] = columns.pop("prompt")
        graded = {"completions": answers, "completion_ids": completions, **columns}
        if verifier is not None:
            rewards_N = torch.tensor(reward_list("verifier", verifier(**graded), len(texts)))
            return Samples(prompts, completions, texts, rewards_N, rewards_N)
        rewards_NF = self._rewards(graded, len(texts))
        total_N = (rewards_NF * trainer.reward_weights.cpu()).nansum(dim=1)
        total_N = total_N.masked_fill(rewards_NF.isnan().all(dim=1), math.nan)
        verifier_N = trainer.verifier.rewards(rewards_NF)
        threshold = trainer.args.correct_threshold
        return Samples(prompts, completions, texts, total_N, verifier_N, threshold)

    def _rewards(self, graded: Mapping[str, Any], count: int) -> Tensor:
        columns = []
        more = {"trainer_state": self._trainer.state}
        more |= {"log_extra": lambda *_: None, "log_metric": lambda *_: None}
        names = self._trainer.reward_func_names
        for name, function in zip(names, self._trainer.reward_funcs, strict=True):
            columns.append(torch.tensor(reward_list(name, function(**graded, **more), count)))
        return torch.stack(columns, dim=1)

    def _sample(self, name: str, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        """Return samples of prompts; those of an interrupted probe are read, not drawn again."""
        trainer, size = self._trainer, self._num_samples
        seed, limit = trainer.args.seed, trainer.max_completion_length
        key = [str(trainer.model.config.name_or_path), seed, size, limit, trainer.temperature]
        kept = _Kept(self._folder and self._folder / f"{name}.jsonl", key, prompts)
        starts = range(len(kept.rows), len(prompts), AT_ONCE)
        for start in track(starts, f"sampling {name}", unit=f"x {AT_ONCE} prompts"):
            batch = range(start, min(start + AT_ONCE, len(prompts)))
            drawn = sample_all(
                self.model,
                self._tokenizer,
                [prompts[place] for place in batch for _ in range(size)],
                [
                    sample_seed(seed, f"{name} {place}", number)
                    for place in batch
                    for number in range(size)
                ],
                max_new_tokens=limit,
                temperature=trainer.temperature,
                batch_size=self._batch_size,
            )
            for number, place in enumerate(batch):
                kept.add(prompts[place], drawn[number * size : (number + 1) * size])
        return [tokens for rows in kept.rows for tokens in rows]


class _Kept:
    """The samples of each prompt, in a file with a line for each, so that a probe can go on.

    The file is of one model, seed and length, the `key`, in its first line; of another it is begun
    anew. So it is from the first line on that a kill has cut, or that is of another prompt.
    """

    def __init__(self, path: Path | None, key: list[Any], prompts: Sequence[Sequence[int]]) -> None:
        self._path, self.rows = path, []
        if path is None:
            return
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        expected = [key, *([*prompt] for prompt in prompts)]
        for place, (line, wanted) in enumerate(zip(lines, expected, strict=False)):
            try:
                written, rows = json.loads(line)
            except ValueError:
                break
            if written != wanted:
                break
            if place:
                self.rows.append(rows)
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = [[key, None], *zip(expected[1:], self.rows, strict=False)]
        write_whole(path, "".join(json.dumps(line) + "\n" for line in whole))

    def add(self, prompt: Sequence[int], rows: list[list[int]]) -> None:
        """Keep the samples of the next prompt."""
        self.rows.append(rows)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps([[*prompt], rows]) + "\n")
