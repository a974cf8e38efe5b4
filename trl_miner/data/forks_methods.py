"""The methods that recipes/forks alone compares, which stand there."""

from .worlds import load_beside_recipes

load_beside_recipes(__name__, "forks/methods.py")
