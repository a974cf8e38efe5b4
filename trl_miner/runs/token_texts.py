"""The text of each token of a completion, as token records and their pages show it."""

from collections.abc import Sequence
from typing import Any

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class TokenTexts:
    """The text of each token as it appears in a completion, so that all of them together are its text."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = getattr(tokenizer, "tokenizer", tokenizer)  # a processor has one
        self._known: dict[int, str] = {}

    def whole(self, token_ids: Sequence[int]) -> str:
        """Return the text of a completion, without special tokens."""
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=True))

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """Return one text per token; a character whose bytes several tokens share goes to the last of them."""
        texts = [self._piece(token_id) for token_id in token_ids]
        start = 0
        for place, text in enumerate(texts):
            if _REPLACEMENT not in text:
                start = place + 1
                continue
            together = self._decode(token_ids[start : place + 1])
            if _REPLACEMENT not in together:
                texts[start : place + 1] = [""] * (place - start) + [together]
                start = place + 1
        return texts

    def _piece(self, token_id: int) -> str:
        """Decode one token, as the second of two: alone, a SentencePiece tokenizer drops the space before a word."""
        if token_id not in self._known:
            alone, twice = self._decode([token_id]), self._decode([token_id, token_id])
            self._known[token_id] = twice[len(alone) :] if twice.startswith(alone) else alone
        return self._known[token_id]

    def _decode(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(token_ids), clean_up_tokenization_spaces=False))
