"""What griffe makes of TRL's form of docstrings, for the site."""

import re
from typing import Any

from griffe import Extension, Object

TYPE = re.compile(r"(?<=\()(`.*?`.*?)(?=\):$)", re.MULTILINE)


class PlainTypes(Extension):
    """Types of arguments without backticks: griffe shows what stands in the brackets as code."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        if obj.docstring:
            obj.docstring.value = TYPE.sub(
                lambda match: match[1].replace("`", ""), obj.docstring.value
            )
