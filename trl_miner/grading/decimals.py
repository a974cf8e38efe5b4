"""Numbers whose decimals follow a comma."""

import re

# 1.234,56 and 1 234,56: what parts thousands there
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:[.\s\u00a0\u202f]\d{3})+(?=,\d)")
_COMMA = re.compile(r"(?<=\d)(?:,|\{,\})(?=\d)")


def with_points(text: str) -> str:
    """Return a text with decimal points for the commas inside its numbers.

    >>> with_points("15,50 €, or 1.234,5")
    '15.50 €, or 1234.5'
    """
    return _COMMA.sub(".", _THOUSANDS.sub(lambda match: re.sub(r"\D", "", match[0]), text))
