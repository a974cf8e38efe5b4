"""Write the settings into the docstrings of the configuration classes, and onto the page of the
settings: `python .ci/settings.py`.

They come from the fields, each with its help. Tests fail when they are stale.
"""

import inspect
import re
import textwrap
from pathlib import Path

from trl_miner.recipe.parsing import settings_page
from trl_miner.recipe.setting_groups import as_args
from trl_miner.trainer.async_config import MinerAsyncGRPOConfig
from trl_miner.trainer.config import MinerGRPOConfig, RunConfig

CLASSES = (MinerGRPOConfig, RunConfig, MinerAsyncGRPOConfig)
PAGE = Path(__file__).parent.parent / "docs" / "source" / "reference" / "settings.md"
MARKED = re.compile(
    r"(?<=<!-- settings: .ci/settings.py -->\n\n).*(?=\n<!-- settings end -->)", re.DOTALL
)


def written(source: str, kind: type) -> str:
    """Return the source of a module with the current settings in the docstring of one class."""
    opening, docstring, rest = re.split(
        rf'(class {kind.__name__}\(.*?\n    """.*?""")', source, maxsplit=1, flags=re.DOTALL
    )
    text = docstring.removesuffix('"""').partition("\n    Args:\n")[0].rstrip()
    args = textwrap.indent(as_args(kind), "    ").rstrip()
    return f'{opening}{text}\n\n{args}\n    """{rest}'


if __name__ == "__main__":
    for kind in CLASSES:
        path = Path(inspect.getfile(kind))
        path.write_text(written(path.read_text(encoding="utf-8"), kind), encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(MARKED.sub(lambda _: settings_page(), page), encoding="utf-8")
