"""The pictures of the first notebook show the numbers that they are given."""

import importlib
import sys
from pathlib import Path

import pytest
import torch

from trl_miner import miner_advantages
from trl_miner.methods.groups import GroupKinds, group_kinds
from trl_miner.prompt_kinds import PromptKind

sys.path.append(str(Path(__file__).parents[1] / "notebooks"))
pictures = importlib.import_module("batch_pictures")
G = 2
REWARDS = torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0, 0.0])
MASK = torch.tensor([[1, 1], [1, 0], [1, 1], [1, 1], [1, 1], [1, 1]])
TOKENS = [["$a$", "b"], ["c"], *[["d", "e"]] * 4]
NAMES = ["PH", "PH", "HE", "HE", "NH", "NH"]


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_kinds_have_their_names():
    assert [f"is_{kind.lower()}_N" for kind in PromptKind] == [*GroupKinds._fields]
    assert pictures.kind_names(group_kinds(REWARDS, G)) == NAMES
    found = miner_advantages(REWARDS, torch.zeros(6, 2), MASK, num_generations=G)
    assert pictures.kind_names(found.kinds) == NAMES


def test_every_token_that_counts_has_its_number_and_padding_has_none():
    values = torch.tensor([[0.5, -1.0], [0.0, 9.0], *[[0.25, 2.0]] * 4])
    figure = pictures.draw_tokens(
        values, MASK, TOKENS, kinds=NAMES, num_generations=G, title="credit"
    )
    shown = texts(figure.axes[0])
    assert shown[:6] == ["$a$", "0.50", "b", "-1.00", "c", "0"] and "9.00" not in shown
    assert len(shown) == 2 * 11  # 12 cells less one of padding
    cells = figure.axes[0].collections[0]
    (red, _, blue), (_, _, less_blue) = cells.to_rgba(cells.get_array()).reshape(6, 2, 4)[0, :, :3]
    assert red < blue and less_blue < 1  # up is blue, down is orange
    with pytest.raises(ValueError, match="got 5 for 6 rollouts"):
        pictures.draw_tokens(
            values, MASK, TOKENS[:5], kinds=NAMES, num_generations=G, title="credit"
        )


def test_a_bar_for_every_rollout_in_every_panel():
    series = {"reward": REWARDS, "nll": torch.full((6,), torch.nan)}
    figure = pictures.draw_by_rollout(
        series, kinds=NAMES, num_generations=G, ylabel="nats", title="both"
    )
    assert [[bar.get_height() for bar in axes.patches] for axes in figure.axes] == [
        REWARDS.tolist(),
        [0.0] * 6,
    ]
    assert texts(figure.axes[0])[:4] == ["1.00", "1.00", "1.00", "0"]
