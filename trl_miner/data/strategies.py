"""The world of recipes/study, which stands there."""

from .worlds import load_beside_recipes

load_beside_recipes(__name__, "study/world.py")
