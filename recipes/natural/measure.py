"""On tasks that were not built for it, how often can one tell which way MINER pushes?

    pip install reasoning_gym
    python measure.py start countdown gcd    # starts/FAMILY: the model, after a supervised start
    python measure.py pilot countdown gcd    # how often it solves a few other problems
    python measure.py probe countdown gcd    # samples.jsonl.gz: a line per family
    python measure.py data countdown gcd     # data/FAMILY/{train,test}.jsonl, for train.yaml

Every problem is solved in one line, "= ... = answer", with or without its steps.
"""

import gzip
import json
import math
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import reasoning_gym
import torch
import yaml
from reasoning_gym.arithmetic.leg_counting import ANIMALS
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from trl_miner.methods.grpo import group_relative_advantages
from trl_miner.methods.miner import miner_advantages
from trl_miner.probe import FEWEST, success_advantages

HERE = Path(__file__).parent
FAMILIES = yaml.safe_load((HERE / "families.yml").read_text("utf-8"))
MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
STARTED = {
    "easy": 200,
    "hard": 50,
}  # problems that the start learns from, the first of a level
ASKED = {"easy": 128, "hard": 96}  # those after them, which the probe asks
TRAINED = 160  # easy problems of a training: those, and more
SOLVED = {
    "easy": (0.2, 0.9),
    "hard": (0.03, 0.6),
}  # shares between which a family counts
MOST = 32  # mixed easy problems with a gradient
PILOT = 12  # the last ones, of which the pilot asks so many
SAMPLES, TEMPERATURE = 8, 1.0  # of each problem
LONGEST = 48  # tokens of a completion


def problems(name: str, level: str, first: int, count: int) -> list[dict[str, Any]]:
    """Return `count` different problems of a level, from the place `first` on."""
    family, found, gym = FAMILIES[name], {}, gym_of(name, level)
    for place in range(20_000):
        entry = gym[place]
        its = {"place": place, "gym": gym, "entry": entry, **entry["metadata"]}
        its["answer"] = entry["answer"]
        its["ask"] = family["ask"].format(**its)
        found.setdefault(its["ask"], its)
        if len(found) == first + count:
            break
    return [*found.values()][first:]


def steps_of(name: str, its: dict[str, Any], rng: random.Random) -> list[Any]:
    """Return the steps from a problem to its answer, the last: one of the correct answers, where
    there are several."""
    steps: list[Any] = []
    if name == "countdown":
        steps.append(swapped(its["answer"], rng))
    elif name in ("chain_sum", "products"):
        text = its["expression"]
        while (shorter := reduced(text)) != text:
            steps.append(text := shorter)
    elif name == "prime_factorization":
        factors = its["factors"]
        for end in range(1, len(factors)):
            steps.append(" × ".join(map(str, [*factors[:end], math.prod(factors[end:])])))
    elif name == "fraction_simplification":
        over, under = int(its["numerator"]), int(its["denominator"])
        while (common := math.gcd(over, under)) > 1:
            by = next(one for one in range(2, common + 1) if common % one == 0)
            over, under = over // by, under // by
            steps.append(f"{over}/{under}")
    elif name == "gcd":
        less, more = sorted(its["numbers"])
        while less:
            less, more = more % less, less
            steps.append(f"GCD of [{more}, {less}]")
        steps[-1] = more
    elif name == "lcm":
        one, other = its["numbers"]
        steps += [f"{one} * {other} / {math.gcd(one, other)}", its["answer"]]
    elif name == "graph_color":
        colors = rng.sample([1, 2, 3], 3)
        own = {at: colors[color - 1] for at, color in its["possible_answer"].items()}
        steps.append(json.dumps(own))
    elif name == "palindrome_generation":
        half = its["answer"][: len(its["answer"]) // 2]
        begun = "".join(rng.sample(half, len(half)))
        steps.append(" ".join(begun + its["answer"][len(half) : -len(half)] + begun[::-1]))
    elif name == "spell_backward":
        steps.append(" ".join(its["answer"]))
    elif name == "letter_counting":
        words = [one for one in its["span"] if its["target_letter"] in one.lower()]
        steps += [", ".join(words) or "none", its["answer"]]
    elif name == "leg_counting":
        pairs = [(count, ANIMALS[animal]) for animal, count in its["animals"].items()]
        steps.append(" + ".join(f"{count} * {legs}" for count, legs in pairs))
        steps.append(" + ".join(str(count * legs) for count, legs in pairs))
        steps += [its["answer"]] * (len(pairs) > 1)
    return steps or [its["answer"] or its["example_answer"]]


def reduced(text: str) -> str:
    """Return a sum with its first product, else its first two terms, computed."""
    pattern = r"\d+ \* \d+" if "*" in text else r"^-?\d+ [+-] \d+"
    return re.sub(pattern, lambda sign: str(eval(sign[0])), text, count=1)


def swapped(text: str, rng: random.Random) -> str:
    """Return a sum or product of two numbers in either order; other expressions as they are."""
    found = re.fullmatch(r"(\d+) ?([+*]) ?(\d+)", text)
    if found and rng.random() < 0.5:
        return f"{found[3]}{found[2]}{found[1]}"
    return text.replace(" ", "")


def start(name: str, steps: int = 60, rows: int = 16, rate: float = 1e-4) -> None:
    """Teach the model problems, solved with some of their steps, each as often as not. A row in five
    is of the target's level. A second call goes on from the first."""
    folder = HERE / "starts" / name
    seed = 8 if folder.exists() else 7
    torch.manual_seed(seed)
    tokenizer, model = load(folder if folder.exists() else MODEL)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    rng = random.Random(seed)
    taught = {level: problems(name, level, 0, count) for level, count in STARTED.items()}
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * min((step + 1) / 5, 2 * (1 - step / steps), 1)
        pairs = []
        for _ in range(rows):
            its = rng.choice(taught["hard" if rng.random() < 0.2 else "easy"])
            *before, answer = steps_of(name, its, rng)
            told = [one for one in before if rng.random() < 0.5]
            solution = "".join(f" = {one}" for one in [*told, answer]) + tokenizer.eos_token
            pairs.append(tokenizer([its["ask"], solution])["input_ids"])
        pairs.sort(key=lambda pair: len(pair[0] + pair[1]))
        with torch.autocast("cpu", torch.bfloat16):
            losses = [loss_of(model, pairs[at : at + 8]) for at in range(0, rows, 8)]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 9:
            print(f"{name}, step {step}: {sum(losses) / len(losses):.3f}", flush=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def loss_of(model: Any, pairs: list[Any]) -> float:
    """Return the loss of questions' solutions, whose gradient is added to what is there."""
    ids = pad_sequence([torch.tensor(asked + solved) for asked, solved in pairs], True)
    labels = [torch.tensor([-100] * len(asked) + solved) for asked, solved in pairs]
    targets = pad_sequence(labels, True, padding_value=-100)
    loss = model(input_ids=ids, labels=targets).loss  # padding comes last: no mask
    (loss / 2).backward()
    return loss.item()


def load(path: Any) -> tuple[Any, Any]:
    """Return a tokenizer and its model."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    return AutoTokenizer.from_pretrained(path), model.eval()


def is_right(name: str, its: dict[str, Any], completion: str) -> bool:
    """Return whether the family's scorer gives the last answer full marks. That of countdown
    evaluates a text, so it is shown arithmetic alone."""
    answer = completion.rpartition("=")[2].strip()
    if name != "propositional_logic":
        answer = answer.replace(" ", "")
    if name == "prime_factorization":
        answer = answer.replace("×", " × ")
    if name == "countdown" and (re.search(r"[^\d+*/()-]", answer) or "**" in answer):
        return False
    try:
        return its["gym"].score_answer(answer, its["entry"]) > 0.99
    except ValueError:  # what prime_factorization cannot read
        return False


@torch.no_grad()
def sample(model: Any, asked: list[int], end: int) -> list[tuple[int, ...]]:
    """Return the tokens of independent completions. What begins alike is computed
    once, and drawn apart."""
    found, rows, cache = [], {(): SAMPLES}, DynamicCache()
    ids = torch.tensor([asked])
    while rows:
        output = model(input_ids=ids, past_key_values=cache, logits_to_keep=1)
        chances = (output.logits[:, -1].float() / TEMPERATURE).softmax(dim=1)
        longer, parents = {}, []
        for place, (row, times) in enumerate(rows.items()):
            for token, own in Counter(chances[place].multinomial(times, True).tolist()).items():
                if token == end or len(row) == LONGEST:
                    found += [(*row, token)] * own
                else:
                    longer[*row, token] = own
                    parents.append(place)
        rows = longer
        cache.batch_select_indices(torch.tensor(parents, dtype=torch.long))
        ids = torch.tensor([row[-1:] for row in rows])
    return found


def scores(model: Any, asked: list[int], rows: list[tuple[int, ...]]) -> tuple[Tensor, ...]:
    """Return (N, T) log-probs of completions' tokens, entropies at their places, and a mask. What
    begins alike is one branch of a tree, whose tokens see what they follow."""
    whole = [(*asked, *row) for row in rows]
    nodes = sorted({one[: end + 1] for one in whole for end in range(len(one))}, key=len)
    place = {node: at for at, node in enumerate(nodes)}
    is_seen = torch.tensor([[node[: len(other)] == other for other in nodes] for node in nodes])
    logits = model(
        input_ids=torch.tensor([[node[-1] for node in nodes]]),
        attention_mask=is_seen[None, None],
        position_ids=torch.tensor([[len(node) - 1 for node in nodes]]),
        use_cache=False,
    ).logits[0]
    all_logps = (logits.float() / TEMPERATURE).log_softmax(dim=1)
    entropies = -(all_logps.exp() * all_logps).sum(dim=1)
    before = [
        torch.tensor([place[one[:end]] for end in range(len(asked), len(one))]) for one in whole
    ]
    before_NT = pad_sequence(before, batch_first=True)
    tokens_NT = pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    mask_NT = pad_sequence([torch.ones(len(row)) for row in rows], batch_first=True)
    return (
        all_logps[before_NT, tokens_NT] * mask_NT,
        entropies[before_NT] * mask_NT,
        mask_NT,
    )


def draw(
    name: str, level: str, model: Any, tokenizer: Any, asked: Sequence[Any]
) -> list[dict[str, Any]]:
    """Return problems of a level with samples: the tokens, the texts, whether each is correct."""
    drawn = []
    for its in asked:
        ids = tokenizer(its["ask"])["input_ids"]
        rows = sample(model, ids, tokenizer.eos_token_id)
        texts = tokenizer.batch_decode(rows, skip_special_tokens=True)
        right = [is_right(name, its, text) for text in texts]
        its = {"place": its["place"], "ask": its["ask"], "asked": ids}
        drawn.append({**its, "rows": rows, "texts": texts, "right": right})
    return drawn


def directions(
    right_N: Tensor, logps_NT: Tensor, entropies_NT: Tensor, mask_NT: Tensor
) -> dict[str, Tensor]:
    """Return (N, T) weights of the log-probs: in what MINER and the entropy bonus add to GRPO, for an
    all-right prompt; in GRPO, for a mixed one."""
    if right_N.all():
        mined = miner_advantages(
            right_N, logps_NT, mask_NT, num_generations=SAMPLES, lambda_max=None
        )
        return {"MINER": mined.advantages_NT, "entropy bonus": -logps_NT - entropies_NT}
    return {"GRPO": group_relative_advantages(right_N, SAMPLES)[:, None] * mask_NT}


def write(name: str) -> None:
    """Write the problems of a training: those that the probe asks, and more of the easy ones."""
    folder = HERE / "data" / name
    folder.mkdir(parents=True, exist_ok=True)
    for file, level, count in (
        ("train", "easy", TRAINED),
        ("test", "hard", ASKED["hard"]),
    ):
        rows = [
            {"question": its["ask"], "solution": f"{name} {level} {its['place']}"}
            for its in problems(name, level, STARTED[level], count)
        ]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{file}.jsonl").write_text(text, "utf-8")


def solved(completions: list[str], solution: list[str], **_: Any) -> list[float]:
    """Reward 1 for a correct completion, else 0."""
    found = []
    for text, task in zip(completions, solution, strict=True):
        name, level, place = task.split()
        gym = gym_of(name, level)
        found.append(float(is_right(name, {"gym": gym, "entry": gym[int(place)]}, text)))
    return found


@cache
def gym_of(name: str, level: str) -> Any:
    """Return reasoning_gym's problems of a level; equal places have equal ones."""
    return reasoning_gym.create_dataset(name, size=100_000, seed=7, **FAMILIES[name][level])


class Sums:
    """Gradients added by name, and what each of them adds to their products with others."""

    def __init__(self, model: Any) -> None:
        self.weights = [*model.parameters()]
        self.totals: dict[str, Tensor] = {}
        self.parts: dict[str, dict[str, list[float]]] = {}

    def gradient(self, loss: Tensor) -> Tensor:
        parts = torch.autograd.grad(loss, self.weights, retain_graph=True)
        return torch.cat([one.flatten() for one in parts])

    def add(self, name: str, gradient: Tensor, along: dict[str, Tensor], times: float = 1) -> None:
        """Add a gradient, and note its products with those of `along`."""
        total = self.totals.setdefault(name, torch.zeros_like(gradient))
        total.add_(gradient, alpha=times)
        for other, vector in along.items():
            own = self.parts.setdefault(name, {}).setdefault(other, [])
            own.append(times * float(gradient @ vector))


def probe(name: str) -> dict[str, Any]:
    """Return a family's samples, and what each problem adds to the product of a direction and the
    slope of success."""
    torch.manual_seed(7)
    began = time.process_time()
    tokenizer, model = load(HERE / "starts" / name)
    drawn = {}
    for level, count in ASKED.items():
        asked = problems(name, level, STARTED[level], count)
        drawn[level] = draw(name, level, model, tokenizer, asked)
    shares = {level: np.mean([one["right"] for one in own]) for level, own in drawn.items()}
    print(name, shares, flush=True)
    if not all(low <= shares[level] <= high for level, (low, high) in SOLVED.items()):
        return {"family": name, **drawn, "gradients": None}
    slopes, ways = Sums(model), Sums(model)
    differing = [one for one in drawn["easy"] if all(one["right"]) and len({*one["rows"]}) > 1]

    def losses(one: dict[str, Any]) -> tuple[Tensor, ...]:
        logps_NT, entropies_NT, mask_NT = scores(model, one["asked"], one["rows"])
        one["nll"] = (-logps_NT.sum(dim=1) / mask_NT.sum(dim=1)).tolist()
        return torch.tensor(one["right"]).float(), logps_NT, entropies_NT, mask_NT

    def success(one: dict[str, Any]) -> Tensor:
        right_N, logps_NT, _, _ = losses(one)
        if right_N.min() == right_N.max():
            return torch.zeros(sum(map(torch.numel, slopes.weights)))
        return slopes.gradient((success_advantages(right_N[None] == 1).T * logps_NT).sum())

    hard = drawn["hard"]
    if len(differing) < FEWEST:  # MINER adds to too few
        with torch.no_grad():
            for one in hard:
                losses(one)
        return {"family": name, **drawn, "gradients": {}}
    for at, one in enumerate(hard):
        slopes.add(f"half {at % 2}", success(one), {})
    halves = slopes.totals
    whole = {"success": halves["half 0"] + halves["half 1"]}
    taken = 0
    for one in drawn["easy"]:
        is_mixed = 0 < sum(one["right"]) < SAMPLES
        taken += is_mixed
        if not any(one["right"]) or is_mixed and taken > MOST:
            continue
        right_N, logps_NT, entropies_NT, mask_NT = losses(one)
        found = directions(right_N, logps_NT.detach(), entropies_NT.detach(), mask_NT)
        for way, weights_NT in found.items():
            if weights_NT.any():
                gradient = ways.gradient((weights_NT * logps_NT).sum())
                ways.add(way, gradient, whole)
                if way == "GRPO":
                    ways.add("F-GRPO", gradient, whole, -float(right_N.mean()))
    again = Sums(model)
    for at, one in enumerate(hard):
        gradient = success(one)
        again.add("success", gradient, ways.totals)
        again.add(f"half {at % 2}", gradient, {"other half": halves[f"half {1 - at % 2}"]})
    vectors = {**whole, **halves, **ways.totals}
    found = {
        "by prompt": {way: its["success"] for way, its in ways.parts.items()},
        "by problem": again.parts["success"],
        "halves": [again.parts[f"half {at}"]["other half"] for at in (0, 1)],
        "lengths": {way: float(vector.norm()) for way, vector in vectors.items()},
    }
    return {
        "family": name,
        "seconds": round(time.process_time() - began),
        **drawn,
        "gradients": found,
    }


def main() -> None:
    """Do what the command says."""
    torch.set_num_threads(1)
    what, *names = sys.argv[1:]
    for name in names:
        if what == "start":
            start(name)
        elif what == "pilot":
            torch.manual_seed(3)
            tokenizer, model = load(HERE / "starts" / name)
            for level in ASKED:
                asked = problems(
                    name, level, STARTED[level] + ASKED[level], PILOT
                )  # none of theirs
                drawn = draw(name, level, model, tokenizer, asked)
                right = [sum(one["right"]) for one in drawn]
                share = 100 * np.mean(right) / SAMPLES
                print(name, level, f"{share:.0f} %", sorted(right), flush=True)
        elif what == "data":
            write(name)
        elif what == "probe":
            with gzip.open(HERE / f"{name}.jsonl.gz", "at") as file:
                file.write(json.dumps(probe(name)) + "\n")


if __name__ == "__main__":
    main()
