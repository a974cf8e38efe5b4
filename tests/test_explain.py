"""The pictures of the first notebook show the numbers that they are given."""

import pytest
import torch

from trl_miner import miner_advantages
from trl_miner.methods.groups import GroupKinds, group_kinds
from trl_miner.prompt_kinds import PromptKind
from trl_miner.viewing.explain import draw_by_rollout, draw_cap, draw_focus, draw_tokens, kind_names

G = 2
REWARDS = torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0, 0.0])
MASK = torch.tensor([[1, 1], [1, 0], [1, 1], [1, 1], [1, 1], [1, 1]])
TOKENS = [["$a$", "b"], ["c"], *[["d", "e"]] * 4]
NAMES = ["PH", "PH", "HE", "HE", "NH", "NH"]


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_kinds_have_their_names():
    assert [f"is_{kind.lower()}_N" for kind in PromptKind] == [*GroupKinds._fields]
    assert kind_names(group_kinds(REWARDS, G)) == NAMES
    found = miner_advantages(REWARDS, torch.zeros(6, 2), MASK, num_generations=G)
    assert kind_names(found.kinds) == NAMES


def test_every_token_that_counts_has_its_number_and_padding_has_none():
    values = torch.tensor([[0.5, -1.0], [0.0, 9.0], *[[0.25, 2.0]] * 4])
    figure = draw_tokens(values, MASK, TOKENS, kinds=NAMES, num_generations=G, title="credit")
    shown = texts(figure.axes[0])
    assert shown[:6] == ["$a$", "0.50", "b", "-1.00", "c", "0"] and "9.00" not in shown
    assert len(shown) == 2 * 11  # 12 cells less one of padding
    cells = figure.axes[0].collections[0]
    (red, _, blue), (_, _, less_blue) = cells.to_rgba(cells.get_array()).reshape(6, 2, 4)[0, :, :3]
    assert red < blue and less_blue < 1  # up is blue, down is orange
    with pytest.raises(ValueError, match="got 5 for 6 rollouts"):
        draw_tokens(values, MASK, TOKENS[:5], kinds=NAMES, num_generations=G, title="credit")


def test_a_bar_for_every_rollout_in_every_panel():
    series = {"reward": REWARDS, "nll": torch.full((6,), torch.nan)}
    figure = draw_by_rollout(series, kinds=NAMES, num_generations=G, ylabel="nats", title="both")
    assert [[bar.get_height() for bar in axes.patches] for axes in figure.axes] == [REWARDS.tolist(), [0.0] * 6]
    assert texts(figure.axes[0])[:4] == ["1.00", "1.00", "1.00", "0"]


def test_the_focal_weight_is_drawn_where_it_is():
    line, marks = draw_focus([2], probabilities=[0.9]).axes[0].lines
    assert line.get_ydata()[50] == 0.25  # (1 - .5)^2
    assert marks.get_ydata()[0] == pytest.approx(0.01)  # (1 - .9)^2


@pytest.mark.parametrize(
    ("tau_ref", "lambda_max", "left"),
    [(20.0, 1.5e-3, 0.03), (20.0, 1.0, 0.5), (0.0, 1.5e-3, 0.0)],  # .0015 * 20 below tau_pos .5; 1 * 20 above it
)
def test_the_cap_marks_what_is_left(tau_ref, lambda_max, left):
    axes = draw_cap(tau_ref, 0.5, lambda_max).axes[0]
    assert axes.lines[2].get_ydata()[0] == pytest.approx(left)
    assert max(axes.lines[0].get_ydata()) == pytest.approx(0.5 if tau_ref else 0)
