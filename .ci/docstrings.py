"""What griffe makes of TRL's form of docstrings, for the site."""

import re
from typing import Any

from griffe import Extension, Object

TYPE = re.compile(r"(?<=\()(`.*?`.*?)(?=\):$)|(?<=Returns:\n    )(`\w+`)(?=:)", re.MULTILINE)
GROUP = re.compile(r"^    > ", re.MULTILINE)  # of settings, which have a page of their own


class TrlDocstrings(Extension):
    """Types of arguments without marks, as griffe shows what stands in the brackets as code; no
    settings."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        if not obj.docstring:
            return
        text = obj.docstring.value
        if GROUP.search(text):
            text = text.partition("\nArgs:\n")[0]
        obj.docstring.value = TYPE.sub(lambda match: re.sub("[`*]", "", match[0]), text)
