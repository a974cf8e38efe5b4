"""Probe a recipe: which way would its method push success on a target, before anything is trained?

`evaluation.probe` has the mathematics. This module samples what it needs, as the recipe's training
would, and says what to do.
"""

import hashlib
import json
import math
import random
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import torch
from accelerate import PartialState

from . import grading
from .common.progress import is_quiet, track
from .common.tables import Table
from .data.base_model import find_model
from .evaluation.evaluate import identity
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
from .methods.compose import ALL_WRONG, find_composition
from .methods.grpo import GRPO
from .methods.miner import REWARDS
from .recipe.files import with_recipe_file
from .recipe.parsing import load_reward_funcs, make_parser
from .recipe.preview import preview_recipe
from .recipe.training_data import check_rows, load_data
from .runs.files import write_json
from .runs.held_out import TRAINED
from .train import build
from .trainer.generation_batch import total_rewards
from .trainer.prompt_keys import prompt_key

OWN = " (the recipe's)"
TRAINING, TARGET, MIXED = "training", "target", "the mixed training prompts"
USUAL = ("miner", "entropy", "certainty")
AT_ONCE = 8  # prompts that are sampled together, and kept together if the probe is interrupted
MOST_TIMES = 25  # as many samples again as anybody would take
VLLM_MEMORY = 0.3  # vLLM's share of a GPU that the model is on, too
NOTES = (
    "up: at first, training with the method makes correct answers to the target problems more likely"
    " than GRPO alone does. down: less likely. cannot tell: this sample does not show which.",
    "Effect: what a step of length 1 along the method's gradient adds to Pass@1 on the target. Its"
    " sign is a forecast. Its size is none, because a training takes many steps.",
    f"certainty is MINER with the opposite sign. {GRPO_ALONE}, is what all others are added to.",
    f"The last column asks about {MIXED}. It does not say what happens on the target.",
)


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
        trainer, scores, model = _build(arguments, folder)
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
    policy = Policy(
        trainer.model.eval(),
        trainer.processing_class.pad_token_id or 0,
        temperature=trainer.temperature,
        max_tokens=config.max_tokens_per_micro_batch or MAX_TOKENS,
    )
    asked = ways(config, methods or USUAL)
    _check_memory(policy, len(asked))
    rows = _targets(scores.problems, trainer.train_dataset, problems, config.seed)
    sampler = _Sampler(trainer, scores, samples, output, model)
    trained = sampler.draw(TRAINING, _some(trainer.train_dataset, prompts, config.seed))
    _check_trained(trained, asked)
    target = sampler.draw(TARGET, rows)
    _check_target(target)
    targets = {TARGET: target, MIXED: trained}  # of which only the mixed ones have a slope
    is_per_row = config.loss_type == "grpo"
    pushes = probe(policy, trained, targets, asked, per_row=is_per_row, seed=config.seed)
    result = Result(pushes, trained, target)
    if output is not None:
        write_json(output / "probe.json", result.record())
    return result


def ways(config: Any, names: Sequence[str]) -> list[Way]:
    """Return the recipe's own method, unless it is GRPO, and those that are named.

    A value of `miner_intrinsic` names MINER with it, and "miner" the paper's, whatever the recipe
    has.
    """
    own = "" if config.estimators == (GRPO,) else _name_of(config)
    listed = [Way(f"{own}{OWN}", config.composition, config.knobs)] if own else []
    for name in names:
        as_named = copy(config)
        as_named.miner_intrinsic = name if name in REWARDS else REWARDS[0]
        composition = find_composition("miner" if name in REWARDS else name)
        if name != own:
            listed.append(Way(name, composition, as_named.knobs))
    return listed


def _name_of(config: Any) -> str:
    intrinsic = config.miner_intrinsic
    miner = "miner" if intrinsic == REWARDS[0] else intrinsic
    return " + ".join(miner if m.name == "miner" else m.name for m in config.estimators)


@dataclass(frozen=True)
class Result:
    """What a probe has measured."""

    pushes: Mapping[str, Mapping[str, Push]]  # by method and target
    trained: Samples
    target: Samples

    def record(self) -> dict[str, Any]:
        """Return the numbers for a file; infinite ones are None."""

        def numbers(push: Push) -> dict[str, Any]:
            values = {
                key: value if math.isfinite(value) else None for key, value in asdict(push).items()
            }
            return values | {"verdict": push.verdict}

        return {
            "kinds": dict(
                zip(("all right", "mixed", "all wrong"), kinds_of(self.trained), strict=True)
            ),
            "pass@1": {TRAINING: self.trained.pass_at_1, TARGET: self.target.pass_at_1},
            "methods": {
                label: {name: numbers(push) for name, push in by_target.items()}
                for label, by_target in self.pushes.items()
            },
        }

    def text(self) -> str:
        """Return the table and what to do, for a terminal."""
        about = [_about("training prompts", self.trained), _about("target problems", self.target)]
        return "\n".join([*about, "", self.table().markdown(), f"To do: {self.advice()}"])

    def table(self) -> Table:
        """Return a row for each method."""
        rows = []
        for label, by_target in self.pushes.items():
            push, mixed = by_target[TARGET], by_target[MIXED]
            interval = f"{push.low:+.3g} to {push.high:+.3g}" if math.isfinite(push.low) else "n/a"
            effect = f"{push.effect:+.3g} ({interval})"
            cosine = "n/a" if math.isnan(push.cosine) else f"{push.cosine:+.2f}"
            rows.append([label, push.verdict, effect, cosine, mixed.verdict])
        header = ("Method", "On the target", "Effect (95 %)", "Cosine", f"On {MIXED}")
        return Table("Probe", header, rows, NOTES)

    def advice(self) -> str:
        """Return one line: what to do with the recipe."""
        label = next(iter(self.pushes))  # the recipe's, if it has one besides GRPO
        push, name = self.pushes[label][TARGET], label.removesuffix(OWN)
        if label == GRPO_ALONE:
            return "nothing. No method added anything to GRPO in this sample."
        if push.verdict == "up":
            how = (
                f"set {_setting(name)}"
                if name == label
                else f"leave {name} on, as the recipe has it"
            )
            return f"{how}. It pushes success on the target up."
        if push.verdict == "down":
            better = [
                f" {other} pushes it up: {_setting(other)}."
                for other, by_target in self.pushes.items()
                if by_target[TARGET].verdict == "up" and other != GRPO_ALONE
            ]
            return (
                f"leave {name} off: advantage_estimator: grpo, and neither all_right nor all_wrong."
                f" It pushes success on the target down.{''.join(better[:1])}"
            )
        if push.prompts < FEWEST_PROMPTS:
            return (
                f"raise --prompts or --samples. Only {push.prompts} training prompts have a part in"
                f" {name}, too few to tell which way it pushes."
            )
        if push.needed > MOST_TIMES:
            return (
                f"leave {name} off, for simplicity: nothing speaks for it or against it here. Or run a"
                " pilot: trl-miner compare RECIPE --pilot 0.2."
            )
        times = math.ceil(push.needed)
        return (
            f"probe again with {times} times as many: --prompts {times * len(self.trained.prompts)}"
            f" --problems {times * len(self.target.prompts)}, or raise --samples if there are no more."
            f" This sample cannot tell which way {name} pushes."
        )


def kinds_of(samples: Samples) -> list[float]:
    """Return the shares of prompts that came out all right, mixed and all wrong."""
    right_P, wrong_P = samples.is_right_PG.all(dim=1), ~samples.is_right_PG.any(dim=1)
    kinds_3P = torch.stack([right_P, ~(right_P | wrong_P), wrong_P])
    return kinds_3P.float().mean(dim=1).tolist()


def _about(name: str, samples: Samples) -> str:
    right, mixed, wrong = (f"{share:.0%}" for share in kinds_of(samples))
    return (
        f"{len(samples.prompts)} {name}, {samples.num_generations} completions each: {right} all"
        f" right, {mixed} mixed, {wrong} all wrong; Pass@1 {samples.pass_at_1:.3f}"
    )


def _setting(name: str) -> str:
    """Return what a recipe says to train with a method."""
    if name in REWARDS:
        return f"advantage_estimator: miner, miner_intrinsic: {name}"
    return f"advantage_estimator: {name}"


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
        print(f"Beside the model this takes {kept * size / 1e9:.2g} GB, for {kept} gradients.")


def _check_target(target: Samples) -> None:
    """Raise ValueError where no direction can be seen on the target problems."""
    count = len(target.prompts)
    right, mixed, wrong = (round(share * count) for share in kinds_of(target))
    if mixed < FEWEST_PROMPTS:
        others = f"{wrong} all wrong. Name more or easier"
        if right > wrong:
            others = f"{right} all right. Name more or harder"
        raise ValueError(
            f"The target must hold at least {FEWEST_PROMPTS} problems that the model solves"
            f" sometimes: of {count}, {mixed} came out mixed and {others} ones with --target, or"
            " raise --samples."
        )


def _acts_elsewhere(way: Way) -> bool:
    """Whether a method changes more of GRPO than all-right prompts."""
    composition = way.composition
    return composition.mixed is not GRPO or ALL_WRONG in composition.dosed


def _check_trained(trained: Samples, asked: Sequence[Way]) -> None:
    """Raise ValueError where methods for all-right prompts have nothing to act on."""
    solved = round(kinds_of(trained)[0] * len(trained.prompts))
    if solved >= FEWEST_PROMPTS or any(map(_acts_elsewhere, asked)):
        return
    smallest, largest = trained.verifier_rewards_N.nan_to_num().aminmax()
    if smallest < largest < trained.correct_threshold:
        raise ValueError(
            f"No completion of the training prompts counts as correct: the largest reward is"
            f" {largest:g}, and correct_threshold is {trained.correct_threshold:g}. Lower"
            " correct_threshold, or name another verifier with correct_reward_func."
        )
    raise ValueError(
        f"The training prompts must hold at least {FEWEST_PROMPTS} that are all right: {solved} of"
        f" {len(trained.prompts)} are. Raise --prompts; if they stay so few, a method for all-right"
        " prompts has almost nothing to act on: leave it off."
    )


def _some(rows: Any, count: int, seed: int) -> list[dict[str, Any]]:
    """Return some rows of a data set, drawn at random; of a stream, the first."""
    if not hasattr(rows, "__len__"):
        return [*islice(rows, count)]
    places = random.Random(f"probe {seed}").sample(range(len(rows)), min(count, len(rows)))
    return [rows[place] for place in places]


def _targets(problems: Any, trained: Any, count: int, seed: int) -> list[dict[str, Any]]:
    """Return the target problems: beyond the training's levels, where levels are known, and none
    whose prompt is trained, where these are known."""
    rows = [dict(row) for row in problems]
    if hasattr(trained, "__len__"):
        rows = _beyond(rows, trained)
    return random.Random(f"target {seed}").sample(rows, min(count, len(rows)))


def _beyond(rows: list[dict[str, Any]], trained: Any) -> list[dict[str, Any]]:
    keys = {prompt_key({"prompt": prompt}) for prompt in trained["prompt"]}
    fresh = [row for row in rows if prompt_key({"prompt": row["prompt"]}) not in keys]
    shared = f"{len(rows) - len(fresh)} of {len(rows)} are"
    if len(fresh) < min(len(rows), 2 * FEWEST_PROMPTS):
        raise ValueError(
            f"The target must hold problems that are not trained: {shared}. Name others with"
            " --target."
        )
    if len(fresh) < len(rows):
        warnings.warn(f"Of the target problems {shared} trained, and left out.", stacklevel=2)
    if "level" not in trained.column_names or any("level" not in row for row in fresh):
        return fresh
    levels = {str(level) for level in trained["level"]}
    beyond = [row for row in fresh if str(row["level"]) not in levels]
    if not beyond:
        warnings.warn(
            "The target has no problems beyond the trained levels. On such problems credit for"
            " all-right prompts hardly shows: name harder ones with --target.",
            stacklevel=2,
        )
    return beyond or fresh


def _build(arguments: Sequence[str], folder: str) -> tuple[Any, Any, dict[str, Any]]:
    """Return the recipe's trainer, what scores its held-out problems, and what says which model it
    is; without a server, trackers or pushes."""
    words = with_recipe_file(arguments)
    args, config, model_args, mixture = make_parser(words).parse_args_and_config(words)
    if args.asynchronous:
        raise ValueError("A probe takes the recipe of a synchronous training: got asynchronous.")
    if (processes := PartialState().num_processes) > 1:
        raise ValueError(
            f"A probe runs in one process: got {processes}. Start it without accelerate launch."
        )
    config.output_dir, config.report_to, config.push_to_hub = folder, [], False
    _choose_sampler(config)
    grading.configure(args.judge_workers, args.judge_seconds)
    reward_funcs = load_reward_funcs(args, config)
    data = load_data(args, mixture, model_args, trusts=bool(config.trust_remote_code))
    check_rows(args, data)
    preview_recipe(args, config, model_args, reward_funcs, data).check()
    model = asdict(model_args)
    with warnings.catch_warnings():  # `_targets` leaves them out
        warnings.filterwarnings("ignore", message=f".* {TRAINED}")
        trainer, scores = build(args, config, model_args, reward_funcs, data)
    name = find_model(model_args.model_name_or_path)
    return trainer, scores, model | {"weights": identity(name, model_args.model_revision)}


def _choose_sampler(config: Any) -> None:
    """Have vLLM sample where the recipe does, in this process; transformers where it is not
    installed."""
    is_asked, is_there = config.use_vllm, find_spec("vllm") is not None
    if is_asked and not is_there:
        warnings.warn(
            "vLLM is not installed, so transformers samples, which takes much longer.", stacklevel=2
        )
    config.use_vllm = is_asked and is_there
    if config.vllm_mode != "colocate":  # the recipe's vLLM has a GPU of its own
        config.vllm_mode, config.vllm_tensor_parallel_size = "colocate", 1
        config.vllm_gpu_memory_utilization = VLLM_MEMORY
        config.vllm_enable_sleep_mode = torch.cuda.is_available()  # its memory is for the gradients


class _Sampler:
    """Samples as the scoring of held-out problems does, grades, and keeps the samples in a folder,
    by a digest of all that they depend on."""

    def __init__(
        self, trainer: Any, scores: Any, num_samples: int, folder: Path | None, model: Any
    ) -> None:
        self._trainer, self._scores, self._num_samples = trainer, scores, num_samples
        self._folder = folder
        self._about = [model, trainer.args.seed, num_samples, trainer.max_completion_length]
        self._about += [trainer.temperature, trainer.use_vllm]

    def draw(self, name: str, rows: Sequence[Mapping[str, Any]]) -> Samples:
        """Return samples of rows, graded as in training; the target's as held-out problems are."""
        trainer, prompts = self._trainer, list[Sequence[int]]()

        def sample(repeated: Sequence[Sequence[int]]) -> list[list[int]]:
            prompts.extend(repeated[:: self._num_samples])
            return self._sample(name, prompts)

        repeated = [dict(row) for row in rows for _ in range(self._num_samples)]
        answers, completions, _ = trainer.sample_held_out(
            repeated, self._num_samples, trainer.args.seed, sample
        )
        texts = trainer.processing_class.batch_decode(completions, skip_special_tokens=True)
        if name == TARGET:
            columns = {key: [row[key] for row in repeated] for key in rows[0]}
            columns["prompts"] = columns.pop("prompt")
            rewards_N = verifier_N = self._scores.grade(columns, answers, completions)
            threshold = self._scores.threshold
        else:
            rewards_NF = trainer.rewards_of(repeated, answers, completions).cpu()
            rewards_N = total_rewards(rewards_NF, trainer.reward_weights)
            verifier_N = trainer.verifier.rewards(rewards_NF)
            threshold = trainer.args.correct_threshold
        return Samples(prompts, completions, texts, rewards_N, verifier_N, threshold)

    def _sample(self, name: str, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        """Return the samples of prompts; those that a file has are not drawn again."""
        size, seed = self._num_samples, self._trainer.args.seed
        path = self._folder and self._folder / f"{name}.jsonl"
        keys = [_digest([*self._about, place, [*prompt]]) for place, prompt in enumerate(prompts)]
        known = _read(path)
        missing = [place for place, key in enumerate(keys) if key not in known]
        starts = range(0, len(missing), AT_ONCE)
        for start in track(starts, f"sampling {name}", unit=f"x {AT_ONCE} prompts"):
            places = missing[start : start + AT_ONCE]
            cases = [(place, number) for place in places for number in range(size)]
            drawn = self._scores.sample(
                [sample_seed(seed, f"{name} {place}", number) for place, number in cases],
                [prompts[place] for place, _ in cases],
            )
            new = {keys[place]: drawn[n * size : (n + 1) * size] for n, place in enumerate(places)}
            _append(path, new)
            known |= new
        return [tokens for key in keys for tokens in known[key]]


def _digest(values: Any) -> str:
    return hashlib.blake2b(json.dumps(values, default=str).encode(), digest_size=16).hexdigest()


def _read(path: Path | None) -> dict[str, list[list[int]]]:
    """Return the samples of a file by their key; a line that a kill has cut has none."""
    known = {}
    for line in path.read_text("utf-8").splitlines() if path and path.is_file() else ():
        with suppress(ValueError, TypeError):
            key, rows = json.loads(line)
            known[key] = rows
    return known


def _append(path: Path | None, samples: Mapping[str, list[list[int]]]) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:  # the last line may have been cut
            file.writelines(f"\n{json.dumps(case)}" for case in samples.items())
