"""Draws the two schematics of the documentation: `python docs/images/draw.py`.

They are SVG by hand: text stays sharp and small, and 20 pixels of type at 760 pixels of width are
still readable on a telephone. The advantages are those that the package computes.
"""

from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

import torch

from trl_miner import miner_advantages
from trl_miner.methods.grpo import group_relative_advantages

HERE = Path(__file__).parent
WIDTH = 760
# Okabe and Ito's colors, distinguishable for color-blind readers
BLUE, ORANGE, GREEN, RED, INK, LINE = (
    "#0072B2", "#E69F00", "#00795A", "#B34700", "#222222", "#999999"
)  # fmt: skip


class Drawing:
    """Collects the elements of an SVG picture."""

    def __init__(self, height: int, title: str) -> None:
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
            ' font-family="Helvetica, Arial, sans-serif">',
            f"<title>{escape(title)}</title>",
            '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7"'
            f' markerHeight="7" orient="auto-start-reverse"><path d="M0 0L10 5L0 10z"'
            f' fill="{INK}"/></marker></defs>',
            f'<rect width="{WIDTH}" height="{height}" fill="#FFFFFF"/>',
        ]

    def box(self, x: float, y: float, width: float, height: float, fill: str, edge: str) -> None:
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3"'
            f' fill="{fill}" stroke="{edge}"/>'
        )

    def text(
        self, x: float, y: float, text: str, *, size: int = 20, color: str = INK,
        anchor: str = "start", bold: bool = False,
    ) -> None:  # fmt: skip
        weight = ' font-weight="bold"' if bold else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{color}"'
            f' text-anchor="{anchor}"{weight}>{escape(text)}</text>'
        )

    def line(
        self, points: Sequence[tuple[float, float]], *, color: str = LINE, arrow: bool = False
    ) -> None:
        path = "M" + "L".join(f"{x:g} {y:g}" for x, y in points)
        tip = ' marker-end="url(#tip)" stroke-width="2"' if arrow else ""
        self.parts.append(f'<path d="{path}" fill="none" stroke="{color}"{tip}/>')

    def write(self, name: str) -> None:
        text = "\n".join([*self.parts, "</svg>\n"])
        (HERE / name).write_text(text, encoding="utf-8")


def draw_method() -> None:
    """Draw four prompts with eight completions each, and the advantages of GRPO and of MINER."""
    rewards = [[0] * 8, [0, 1, 0, 0, 0, 1, 0, 0], [1, 1, 0, 1, 1, 1, 1, 1], [1] * 8]
    rewards_N = torch.tensor(rewards, dtype=torch.float32).flatten()
    # how unsure the model was of each completion, in nats per token: invented
    unsure = [0.3, 0.2, 1.1, 0.25, 0.3, 0.8, 0.2, 0.35]
    logps_NT = -torch.tensor(unsure * 4).unsqueeze(1)
    grpo_N = group_relative_advantages(rewards_N, 8)
    mined = miner_advantages(
        rewards_N, logps_NT, torch.ones(32, 1), num_generations=8, lambda_max=None, gamma=0.0
    )
    miner_N = mined.advantages_NT.squeeze(1)
    grpo, miner = ([part.tolist() for part in each.split(8)] for each in (grpo_N, miner_N))
    tallest = max(abs(value) for group in grpo for value in group)
    largest = max(miner[3])

    page = Drawing(490, "What GRPO and MINER learn from four prompts")
    left, columns, cell = 150, (372, 566), 22
    page.text(16, 38, "Prompt", bold=True)
    page.text(left, 38, "Eight completions", bold=True)
    for x, name in zip(columns, ("GRPO", "MINER"), strict=True):
        page.text(x, 38, name, bold=True)
    kinds = ("all wrong", "mixed", "mixed", "all right")
    for row, kind in enumerate(kinds):
        top = 56 + 92 * row
        middle = top + 46
        if row == 3:
            page.box(8, top - 2, WIDTH - 16, 92, "#E8F2F9", "#E8F2F9")
        page.text(16, middle + 7, kind)
        for place, right in enumerate(rewards[row]):
            x, color = left + cell * place, GREEN if right else RED
            page.box(x, middle - 11, cell - 3, 22, "#FFFFFF", color)
            page.text(x + 9.5, middle + 7, "✓" if right else "✗", color=color, anchor="middle")
        scales = (38 / tallest, 38 / (largest if row == 3 else tallest))
        for x, group, scale in zip(columns, (grpo[row], miner[row]), scales, strict=True):
            page.line([(x, middle), (x + 8 * cell, middle)], color=INK)
            if not any(group):
                page.text(x + 4 * cell, middle - 8, "nothing", anchor="middle", color="#555555")
            for place, value in enumerate(group):
                height = abs(value) * scale
                if height:
                    y = middle - height if value > 0 else middle
                    fill = BLUE if value > 0 else ORANGE
                    page.box(x + cell * place + 1, y, cell - 5, height, fill, fill)
    y = 56 + 92 * 4 + 26
    page.box(16, y - 13, 14, 14, BLUE, BLUE)
    page.text(36, y, "more likely", size=18)
    page.box(142, y - 13, 14, 14, ORANGE, ORANGE)
    page.text(162, y, "less likely", size=18)
    page.text(262, y, "All right: MINER credits the completions that the model was", size=18)
    page.text(262, y + 24, "least sure of. Drawn larger: less than 1 % of the gradient.", size=18)
    page.write("method.svg")


def draw_processes() -> None:
    """Draw what `trl-miner launch` starts, and what goes between these processes."""
    page = Drawing(560, "What trl-miner launch starts")

    def block(
        x: float, y: float, width: float, height: float, title: str, lines: Sequence[str],
        fill: str = "#FFFFFF", edge: str = LINE,
    ) -> None:  # fmt: skip
        page.box(x, y, width, height, fill, edge)
        page.text(x + width / 2, y + 30, title, anchor="middle", bold=True)
        for place, line in enumerate(lines):
            page.text(x + width / 2, y + 58 + 25 * place, line, size=18, anchor="middle")

    block(210, 12, 340, 78, "trl-miner launch", ["starts both, and watches both"])
    page.line([(290, 90), (180, 138)], color=INK, arrow=True)
    page.line([(470, 90), (580, 138)], color=INK, arrow=True)
    server = ["samples completions", "on GPUs of its own"]
    block(12, 142, 260, 120, "vLLM server", server, "#FDF3DF", ORANGE)
    trainer = ["advantages, loss,", "optimizer steps", "on the other GPUs"]
    block(488, 142, 260, 140, "training", trainer, "#E8F2F9", BLUE)
    for y, label, ends in (
        (168, "prompts", (484, 276)),
        (212, "completions, log-probs", (276, 484)),
        (256, "new weights", (484, 276)),
    ):
        page.text(380, y - 8, label, size=18, anchor="middle")
        page.line([(ends[0], y), (ends[1], y)], color=INK, arrow=True)
    page.line([(560, 282), (472, 340)], color=INK, arrow=True)
    page.text(500, 306, "completions", size=18, anchor="end")
    page.line([(516, 344), (600, 286)], color=INK, arrow=True)
    page.text(590, 330, "rewards", size=18)
    rewards = ["verifiers on CPUs,", "killed if they hang"]
    block(330, 344, 230, 112, "reward functions", rewards, "#E3F3EE", GREEN)
    page.line([(690, 282), (690, 396)], color=INK, arrow=True)
    block(578, 400, 170, 148, "run folder", ["logs, scores,", "records,", "checkpoints"])
    page.line([(574, 512), (504, 512)], color=INK, arrow=True)
    page.text(496, 508, "trl-miner report and inspect", size=18, anchor="end")
    page.text(496, 532, "read it: no GPU, no model", size=18, anchor="end")
    page.text(12, 306, "On one GPU there is no server:", size=18)
    page.text(12, 331, "vLLM samples in the", size=18)
    page.text(12, 356, "training's process", size=18)
    page.text(12, 381, "(vllm_mode: colocate).", size=18)
    page.write("launch.svg")


if __name__ == "__main__":
    draw_method()
    draw_processes()
