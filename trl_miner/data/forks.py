"""The world of recipes/forks, which stands there."""

from .worlds import load_beside_recipes

load_beside_recipes(__name__, "forks/world.py")
