"""On tasks that were not built for it, how often can one tell which way MINER pushes?

    pip install reasoning_gym
    python measure.py start                       # start/: the model, after a supervised start
    python measure.py probe countdown products    # counts.jsonl.gz: a line per family

Every problem is solved in one line, "= ... = answer", with or without its steps.
"""

import gzip
import json
import math
import random
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import reasoning_gym
import torch
import yaml
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from trl_miner.methods.grpo import group_relative_advantages
from trl_miner.methods.miner import miner_advantages
from trl_miner.probe import success_advantages

HERE = Path(__file__).parent
FAMILIES = yaml.safe_load((HERE / "families.yaml").read_text("utf-8"))
MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
SOLVED = {"easy": (0.2, 0.9), "hard": (0.03, 0.6)}  # shares between which a family is probed
PLACES = {"easy": (20_000, 64), "hard": (40_000, 32)}  # of a level's first problem; how many
MOST = 24  # prompts with a gradient, of each method
TAUGHT = 120  # problems of each family that the start learns from
WAYS = ("MINER", "entropy", "F-GRPO", "GRPO", "target itself", "rarer")
SAMPLES, TEMPERATURE = 8, 0.7  # of each problem
LONGEST = 48  # tokens of a completion
SKETCH = 2**20


def problems(name: str, level: str, first: int, count: int) -> Iterator[dict[str, Any]]:
    """Yield different problems from a place on; those of the start are none of the others'."""
    family, seen = FAMILIES[name], set()
    if first:
        seen = {its["ask"] for its in problems(name, "easy", 0, TAUGHT)}
    gym = reasoning_gym.create_dataset(name, size=100_000, seed=7, **family[level])
    for place in range(first, first + 5000):
        entry = gym[place]
        its = {"gym": gym, "entry": entry, "answer": entry["answer"], **entry["metadata"]}
        its["ask"] = family["ask"].format(**its)
        if its["ask"] not in seen:
            seen.add(its["ask"])
            yield its
        if len(seen) == count + TAUGHT * bool(first):
            return


def steps_of(name: str, its: dict[str, Any]) -> list[Any]:
    """Return the steps from a problem to its answer, which is the last."""
    steps: list[Any] = []
    if name in ("chain_sum", "products"):
        text = its["expression"]
        while (shorter := re.sub(r"^-?\d+ . \d+", lambda sign: str(eval(sign[0])), text)) != text:
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
            steps.append(f"GCD[{more}, {less}]")
        steps[-1] = more
    elif name == "lcm":
        one, other = its["numbers"]
        steps += [f"{one} * {other} / {math.gcd(one, other)}", its["answer"]]
    elif name == "graph_color":
        steps.append(json.dumps(its["possible_answer"]))
    elif name in ("palindrome_generation", "spell_backward"):
        steps.append(" ".join(its["answer"]))
    return steps or [its.get("example_answer", its["answer"])]


def start(steps: int = 50, rows: int = 16, rate: float = 3e-4) -> None:
    """Teach the model easy problems, solved with some of their steps, each as often as not."""
    tokenizer, model = load(MODEL, torch.float32)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    rng, taught = (
        random.Random(7),
        {name: [*problems(name, "easy", 0, TAUGHT)] for name in FAMILIES},
    )
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * min((step + 1) / 5, 1 - step / steps)
        pairs = []
        for name in rng.choices([*FAMILIES], k=rows):
            its = rng.choice(taught[name])
            *before, answer = steps_of(name, its)
            told = [one for one in before if rng.random() < 0.5]
            solution = "".join(f" = {one}" for one in [*told, answer]) + tokenizer.eos_token
            pairs.append(tokenizer([its["ask"], solution])["input_ids"])
        pairs.sort(key=lambda pair: len(pair[0] + pair[1]))
        with torch.autocast("cpu", torch.bfloat16):
            losses = [loss_of(model, pairs[at : at + 8]) for at in range(0, rows, 8)]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: {sum(losses) / len(losses):.3f}", flush=True)
    model.save_pretrained(HERE / "start")
    tokenizer.save_pretrained(HERE / "start")


def loss_of(model: Any, pairs: list[Any]) -> float:
    """Return the loss of questions' solutions, whose gradient is added to what is there."""
    ids = pad_sequence([torch.tensor(asked + solved) for asked, solved in pairs], True)
    labels = [torch.tensor([-100] * len(asked) + solved) for asked, solved in pairs]
    targets = pad_sequence(labels, True, padding_value=-100)
    loss = model(input_ids=ids, labels=targets).loss  # padding comes last: no mask
    loss.backward()
    return loss.item()


def load(path: Any, dtype: torch.dtype) -> tuple[Any, Any]:
    """Return a model and its tokenizer."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
    return AutoTokenizer.from_pretrained(path), model.eval()


def is_right(name: str, its: dict[str, Any], completion: str) -> bool:
    """Return whether the family's scorer gives the last answer full marks. That of countdown
    evaluates a text, so it is shown arithmetic alone."""
    answer = completion.rpartition("=")[2].replace(" ", "")
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
    return all_logps[before_NT, tokens_NT] * mask_NT, entropies[before_NT] * mask_NT, mask_NT


def directions(
    level: str, right_N: Tensor, logps_NT: Tensor, entropies_NT: Tensor, mask_NT: Tensor
) -> dict[str, Tensor]:
    """Return (N, T) weights of the log-probs: in the success of a target problem; in what MINER and
    the entropy bonus add to GRPO, for an all-right prompt; in GRPO, for a mixed one."""
    if level == "hard":
        own = {"success": success_advantages(right_N[None] == 1).T * mask_NT}
    elif right_N.all():
        mined = miner_advantages(
            right_N, logps_NT, mask_NT, num_generations=SAMPLES, lambda_max=None
        )
        own = {"MINER": mined.advantages_NT, "entropy bonus": -logps_NT - entropies_NT}
    else:
        own = {"GRPO": group_relative_advantages(right_N, SAMPLES)[:, None] * mask_NT}
    return {name: weights for name, weights in own.items() if weights.any()}


def sketch(gradients: tuple[Tensor, ...], signs: Tensor) -> Tensor:
    """Return (SKETCH,) sums of every SKETCH-th weight, with a random sign for each block of SKETCH
    weights: their products estimate those of gradients without bias, and err by some 0.003 of the
    product of their lengths."""
    flat = torch.cat([one.flatten() for one in gradients])
    flat = pad(flat, (0, len(signs) * SKETCH - len(flat)))
    return (signs @ flat.view(-1, SKETCH)).float()


def draw(name: str, level: str, model: Any, tokenizer: Any) -> Iterator[dict[str, Any]]:
    """Yield problems of a level with samples: the tokens, the texts, whether each is correct."""
    for its in problems(name, level, *PLACES[level]):
        asked = tokenizer(its["ask"])["input_ids"]
        rows = sample(model, asked, tokenizer.eos_token_id)
        texts = tokenizer.batch_decode(rows, skip_special_tokens=True)
        right = [is_right(name, its, text) for text in texts]
        yield {"ask": its["ask"], "asked": asked, "rows": rows, "texts": texts, "right": right}


def probe(name: str, model: Any, tokenizer: Any) -> dict[str, Any]:
    """Return a family's samples and, if the start solves both levels as often as the protocol wants,
    the products of gradients: of what each method adds, with the slopes of success, and among
    themselves."""
    torch.manual_seed(7)
    drawn = {level: [*draw(name, level, model, tokenizer)] for level in SOLVED}
    shares = {level: np.mean([one["right"] for one in own]) for level, own in drawn.items()}
    weights, products = [*model.parameters()], {}
    blocks = math.ceil(sum(map(torch.numel, weights)) / SKETCH)
    signs = torch.randint(0, 2, (blocks,)).mul(2).sub(1).to(model.dtype)
    sketches: dict[str, dict[int, Tensor]] = defaultdict(dict)
    is_wanted = all(low <= shares[level] <= high for level, (low, high) in SOLVED.items())
    for level in SOLVED if is_wanted else ():
        for place, one in enumerate(drawn[level]):
            logps_NT, entropies_NT, mask_NT = scores(model, one["asked"], one["rows"])
            one["nll"] = (-logps_NT.sum(dim=1) / mask_NT.sum(dim=1)).tolist()
            right_N = torch.tensor(one["right"]).float()
            found = directions(level, right_N, logps_NT.detach(), entropies_NT.detach(), mask_NT)
            for way, weights_NT in found.items():
                if len(sketches[way]) < MOST:
                    loss = (weights_NT * logps_NT).sum()
                    parts = torch.autograd.grad(loss, weights, retain_graph=True)
                    sketches[way][place] = sketch(parts, signs)
    for way, own in sketches.items():
        rows, slopes = (torch.stack([*each.values()]) for each in (own, sketches["success"]))
        products[way] = {
            "places": [*own],
            "with success": (rows @ slopes.T).tolist(),
            "among themselves": (rows @ rows.T).tolist(),
        }
    return {"family": name, **drawn, "products": products}


def main() -> None:
    """Do what the command says."""
    what, *names = sys.argv[1:]
    if what == "start":
        start()
    else:
        tokenizer, model = load(HERE / "start", torch.bfloat16)
        for name in names:
            line = json.dumps(probe(name, model, tokenizer))
            with gzip.open(HERE / "counts.jsonl.gz", "at") as file:
                file.write(line + "\n")


if __name__ == "__main__":
    main()
