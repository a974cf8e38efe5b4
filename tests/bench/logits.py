"""What UCAS's logit statistics cost in memory: one rollout of 8192 tokens, a vocabulary of 151,936 (Qwen3's).

    python tests/bench/logits.py [--write]

TRL's own no-grad forward of a one-layer Qwen3, plain and with `watch_logits`; the body of the model is small so that
the head is what is measured. Each in a process of its own: peak of the resident set above what it was before.
Target: at most 1 GiB more than plain. All logits at once would take 4.6 GiB in float32.
"""

import json
import subprocess
import sys
import time

import torch
from common import memory_mib, report_table, reset_peak_memory
from transformers import Qwen3Config, Qwen3ForCausalLM
from trl.trainer.utils import add_fused_lm_head

from trl_miner.trainer.logits import LOGITS_BLOCK, watch_logits

TOKENS, VOCABULARY, HIDDEN = 8192, 151_936, 256


def measure(dtype: str, watches: bool) -> dict[str, float]:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=HIDDEN,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=2 * TOKENS,
    )
    model = Qwen3ForCausalLM(config).to(getattr(torch, dtype)).eval()
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    ids = torch.randint(0, VOCABULARY, (1, TOKENS + 16))
    completion, mask = ids[:, -TOKENS:], torch.ones(1, TOKENS)

    def forward(num_tokens: int) -> None:
        labels = ids.clone()
        labels[:, :-num_tokens] = -100
        with torch.no_grad():
            if not watches:
                model(input_ids=ids, labels=labels, fused_lm_head=True)
                return
            with watch_logits(model, completion, mask, temperature=0.7, elements=TOKENS * VOCABULARY):
                model(input_ids=ids, labels=labels, fused_lm_head=True)

    before = memory_mib("VmRSS")
    reset_peak_memory()
    start = time.perf_counter()
    forward(TOKENS)
    return {"seconds": time.perf_counter() - start, "peak": memory_mib("VmHWM") - before}


def main() -> None:
    if len(sys.argv) > 2 and sys.argv[1] == "--measure":
        print(json.dumps(measure(sys.argv[2], sys.argv[3] == "True")))
        return
    rows = []
    for dtype, width in (("float32", 0), ("bfloat16", 2)):
        found = {}
        for watches in (False, True):
            command = [sys.executable, __file__, "--measure", dtype, str(watches)]
            runs = [
                json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
                for _ in range(3)
            ]
            found[watches] = {key: sorted(run[key] for run in runs)[1] for key in runs[0]}
        # a chunk in float32, and where the model has another type in that as well
        computed = LOGITS_BLOCK * (4 + width) / 2**20
        plain, watched = found[False], found[True]
        rows.append(
            [
                dtype,
                f"{plain['peak']:.0f}",
                f"{watched['peak']:.0f}",
                f"{watched['peak'] - plain['peak']:.0f}",
                f"{computed:.0f}",
                f"{plain['seconds']:.1f}",
                f"{watched['seconds']:.1f}",
            ]
        )
    header = ["model in", "plain, MiB", "with statistics, MiB", "more, MiB", "one chunk, MiB (computed)"]
    header += ["plain, s", "with statistics, s"]
    text = (
        f"Peak above the model's own memory in a no-grad forward of {TOKENS} tokens over {VOCABULARY} logits, medians "
        "of 3. Target: at most 1024 MiB more than plain. All logits in float32 would be "
        f"{TOKENS * VOCABULARY * 4 / 2**20:.0f} MiB."
    )
    report_table("logits", "Memory of UCAS's logit statistics", text, header, rows)


if __name__ == "__main__":
    main()
