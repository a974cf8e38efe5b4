"""A small model runs on one thread, unless somebody has asked for a number."""

import os

import pytest
import torch

from trl_miner.launching.local import launcher_arguments
from trl_miner.threads import NOT_ASKED, SMALL, fitting_threads

ASKED, CHOSEN, FREE = {"OMP_NUM_THREADS": "2"}, {"OMP_NUM_THREADS": "2", NOT_ASKED: "1"}, {}


class Model(torch.nn.Module):
    device = torch.device("cpu")

    def __init__(self, size):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(size, dtype=torch.bool), requires_grad=False)


@pytest.fixture
def environment(monkeypatch):
    """Set the variables, and nothing else of this kind; the threads are as before afterwards."""
    threads = torch.get_num_threads()

    def set_to(variables):
        for name in ("OMP_NUM_THREADS", NOT_ASKED):
            monkeypatch.setenv(name, "")  # so that the test's own changes are undone too
            monkeypatch.delenv(name)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    yield set_to
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    "size, variables, expected",
    [(SMALL, FREE, 1), (SMALL, CHOSEN, 1), (SMALL, ASKED, 2), (SMALL + 1, FREE, 2), (SMALL + 1, CHOSEN, 2)],
)
def test_a_small_model_runs_on_one_thread_unless_asked_otherwise(environment, size, variables, expected):
    environment(variables)
    torch.set_num_threads(2)
    for _ in range(2):
        with fitting_threads(Model(size)):
            assert torch.get_num_threads() == expected
        assert torch.get_num_threads() == 2


@pytest.mark.parametrize(
    "variables, options, is_asked",
    [(FREE, [], False), (ASKED, [], True), (FREE, ["--num_cpu_threads_per_process", "2"], True)],
)
def test_a_number_counts_as_asked_for_if_the_user_gave_it(environment, tmp_path, variables, options, is_asked):
    """accelerate sets OMP_NUM_THREADS in any case."""
    environment(variables)
    recipe = tmp_path / "r.yaml"
    recipe.write_text("output_dir: out\n")
    launcher_arguments(["--config", str(recipe), *options])
    assert (NOT_ASKED not in os.environ) == is_asked
