"""Hold out documents of a stream for validation, chosen by a hash of their content.

In:      a TextSource; the share to hold out
Out:     the texts to train on, or the documents held out, each in the order of the source
Memory:  as the source

Only the hash of a document's bytes decides, not its position, the order of files, the number of
processes or the point of resuming; copies of the document are held out too. A document that is too
large for one text is read in parts and is always trained on, because a run that resumes inside it
does not know its beginning.
"""

from __future__ import annotations

from collections.abc import Iterator

import xxhash

from lowtide.files import checksum_bytes
from lowtide.loader.texts import Place, Text, TextSource
from lowtide.quickclasses import dataclass

__all__ = ["KeptTexts", "is_held_out"]


def is_held_out(text: Text, fraction: float) -> bool:
    """True if a text is a whole document among the share `fraction` for validation.

    >>> [is_held_out(Text(word.encode(), ()), 0.5) for word in ("low", "tide", "water")]
    [False, True, False]
    """
    if not (text.begins_document and text.ends_document):
        return False
    return xxhash.xxh3_64_intdigest(text.data) < int(fraction * 2.0**64)


@dataclass(frozen=True)
class KeptTexts:
    """The texts of a source without the documents held out."""

    source: TextSource
    fraction: float

    @property
    def fingerprint(self) -> str:
        """Changes with the source and the share."""
        return checksum_bytes(f"{self.source.fingerprint}\nheld out {self.fraction}".encode())

    @property
    def text_bytes(self) -> int | None:
        """Estimated bytes of the remaining texts, by the share."""
        total = self.source.text_bytes
        return None if total is None else int(total * (1 - self.fraction))

    def iter_texts(self, *, seed: int | None, place: Place | None = None) -> Iterator[Text]:
        """The texts to train on, from `place` on."""
        for text in self.source.iter_texts(seed=seed, place=place):
            if not is_held_out(text, self.fraction):
                yield text
