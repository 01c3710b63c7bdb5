"""The bytes of each token of a tokenizer.json, with any decoder.

In:      the contents of a tokenizer.json; tokens as written there
Out:     the bytes that a token adds to a text
Memory:  a few strings

The package only decodes whole texts. Streaming text and counting bytes per token need one token at
a time; special handling of the first token of a text by some decoders is ignored.
"""

from __future__ import annotations

import contextlib
import re
from typing import Any

from lowtide.quickclasses import dataclass
from lowtide.tokenizer.bytelevel import unprintable

__all__ = ["TokenTexts"]

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class TokenTexts:
    """The steps of a decoder that produce the text of a single token."""

    is_byte_level: bool = False
    has_bytes: bool = False
    """A token <0x0A> is that byte."""
    replaced: tuple[tuple[str, str], ...] = ()
    inner_prefix: str = ""
    """Prefix of tokens that continue a word; others are preceded by a blank."""
    word_suffix: str = ""
    """Suffix of tokens that end a word."""
    is_joined: bool = True
    """True if tokens are concatenated directly; else there is a blank between them."""

    @classmethod
    def of(cls, contents: dict[str, Any]) -> TokenTexts:
        """Read the decoder section.

        >>> TokenTexts.of({"decoder": {"type": "Metaspace", "replacement": "▁"}}).bytes_of("▁low")
        b' low'
        """
        decoder = contents.get("decoder")
        steps: list[dict[str, Any]] = [decoder] if decoder else []
        if decoder and decoder.get("type") == "Sequence":
            steps = decoder.get("decoders", [])
        by_type = {step.get("type"): step for step in steps}
        replaced = [
            (str(step["pattern"]["String"]), str(step.get("content", "")))
            for step in steps
            if step.get("type") == "Replace" and "String" in step.get("pattern", {})
        ]
        if "Metaspace" in by_type:
            replaced.append((str(by_type["Metaspace"].get("replacement", "▁")), " "))
        return cls(
            is_byte_level="ByteLevel" in by_type,
            has_bytes="ByteFallback" in by_type,
            replaced=tuple(replaced),
            inner_prefix=str(by_type.get("WordPiece", {}).get("prefix", "")),
            word_suffix=str(by_type.get("BPEDecoder", {}).get("suffix", "")),
            is_joined=bool(steps) and "WordPiece" not in by_type,
        )

    def bytes_of(self, token: str) -> bytes:
        """The bytes that one token adds to a text."""
        if self.has_bytes and (byte := _BYTE.fullmatch(token)):
            return bytes([int(byte[1], 16)])
        if self.is_byte_level:
            with contextlib.suppress(KeyError):
                return unprintable(token)
        text = token
        for old, new in self.replaced:
            text = text.replace(old, new)
        if self.inner_prefix and text.startswith(self.inner_prefix):
            text = text.removeprefix(self.inner_prefix)
        elif not self.is_joined:
            text = " " + text
        if self.word_suffix and text.endswith(self.word_suffix):
            text = text.removesuffix(self.word_suffix) + " "
        return text.encode("utf-8", "replace")
