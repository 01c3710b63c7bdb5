"""Describe a tokenizer: kinds of tokens, the longest ones, and text split into tokens.

In:      a tokenizer's folder, file or name; optionally a sample file
Out:     text to print, in colours on a terminal
Memory:  one window of the sample, 8 bytes per token
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lowtide.counts import counted
from lowtide.errors import from_os_error, printable
from lowtide.filenames import MERGES_NAME, METADATA_NAME, TOKENIZER_NAME
from lowtide.files import open_file
from lowtide.memory import format_size
from lowtide.quickclasses import dataclass
from lowtide.tokenizer.tokenizer import Tokenizer

__all__ = [
    "SampleMeasure",
    "inspect_tokenizer",
    "is_tokenizer",
    "kind_of_token",
    "measure_sample",
    "show_tokens",
]

SENTENCE = "The quick brown fox didn't jump over 12345 lazy dogs: naïve café, 東京 😀\n\tx = f(y)\n"
_READ_BYTES = 1 << 20
_SAMPLE_BYTES = 64 << 20
_SENTENCE_CHARACTERS = 240
_LONGEST_SHOWN = 10
_BACKGROUNDS = (153, 194, 224, 229, 189)  # light ones of the 256 colours, for black text

_KINDS = (
    "words with leading whitespace",
    "words and parts of words",
    "numbers",
    "whitespace",
    "symbols",
    "mixed",
    "partial characters",
)


def is_tokenizer(path: Path) -> bool:
    """True if a path is a tokenizer, not a dataset that contains one."""
    if path.is_dir():
        has_tokenizer = any((path / name).is_file() for name in (TOKENIZER_NAME, MERGES_NAME))
        return has_tokenizer and not (path / METADATA_NAME).exists()
    return path.is_file() or str(path) == "gpt2"


def inspect_tokenizer(
    tokenizer: Tokenizer,
    *,
    source: str | Path,
    sample: Path | None = None,
    text: str | None = None,
    color: bool = False,
) -> str:
    """Describe the tokenizer that is in `source`.

    `sample` is a file to measure it on, `text` the text to show as tokens.
    """
    lines = [*_describe(tokenizer, source), "", *_describe_kinds(tokenizer)]
    lines += ["", *_describe_longest(tokenizer)]
    if sample is not None:
        lines += ["", *_describe_sample(tokenizer, sample)]
        text = text if text is not None else _first_lines(sample)
    sentence = text or SENTENCE
    ids = tokenizer.encode(sentence, special="allow")
    num_bytes = len(sentence.encode("utf-8", "replace"))
    lines += ["", f"{counted(len(ids), 'token')} of {counted(num_bytes, 'byte')}:"]
    shown = show_tokens([tokenizer.token_bytes(int(id)) for id in ids], color=color)
    return "\n".join([*map(printable, lines), shown])  # only colours may be control sequences


def _describe(tokenizer: Tokenizer, source: str | Path) -> list[str]:
    lines = [f"{source}: {tokenizer.kind} tokenizer with {tokenizer.vocab_size:,} tokens"]
    if tokenizer.kind == "bpe":
        merges = "by rank" if tokenizer.data.merges is None else f"{len(tokenizer.data.merges):,}"
        lines += [f"  pattern      {tokenizer.data.pattern}", f"  merges       {merges}"]
    if tokenizer.kind == "package":
        reason = tokenizer.data.reason
        by = f"the package tokenizers ({reason})" if reason else "native code (pieces of text)"
        lines.append(f"  run by       {by}")
    specials = sorted(tokenizer.special_tokens.items(), key=lambda item: item[1])
    shown = ", ".join(f"{text} = {id}" for text, id in specials[:8])
    more = f" and {len(specials) - 8} more" if len(specials) > 8 else ""
    lines.append(f"  special      {shown or 'none'}{more}")
    lines.append(f"  fingerprint  {tokenizer.fingerprint}")
    return lines


def kind_of_token(token: bytes) -> str:
    """The kind of a token: a word, a number, spaces, symbols, …

    >>> kind_of_token(b" the"), kind_of_token(b"2024"), kind_of_token(bytes([0xE6]))
    ('words with leading whitespace', 'numbers', 'partial characters')
    """
    try:
        text = token.decode()
    except UnicodeDecodeError:
        return "partial characters"
    if text.isspace():
        return "whitespace"
    body = text[1:] if text[0].isspace() else text
    classes = {unicodedata.category(character)[0] for character in body}
    if classes <= {"L", "M"}:
        return _KINDS[0] if body != text else _KINDS[1]
    if classes <= {"N"}:
        return "numbers"
    return "mixed" if classes & {"L", "N"} else "symbols"


def _ordinary_tokens(tokenizer: Tokenizer) -> list[bytes]:
    specials = set(tokenizer.special_tokens.values())
    return [token for id, token in tokenizer.vocabulary.items() if id not in specials]


def _describe_kinds(tokenizer: Tokenizer) -> list[str]:
    tokens = _ordinary_tokens(tokenizer)
    kinds = Counter(map(kind_of_token, tokens))
    lines = ["what the tokens are:"]
    for kind in _KINDS:
        if kinds[kind]:
            share = 100 * kinds[kind] / len(tokens)
            lines.append(f"  {kind:<30}  {kinds[kind]:>9,}  {share:5.1f} %")
    mean = sum(map(len, tokens)) / max(len(tokens), 1)
    lines.append(f"  {mean:.2f} bytes long on average")
    return lines


def _describe_longest(tokenizer: Tokenizer) -> list[str]:
    longest = sorted(_ordinary_tokens(tokenizer), key=len, reverse=True)[:_LONGEST_SHOWN]
    return ["the longest:", *(f"  {len(token):>4} bytes  {_shorten(token)}" for token in longest)]


def _shorten(token: bytes) -> str:
    text = repr(token.decode("utf-8", "backslashreplace"))
    return text if len(text) <= 70 else f"{text[:50]} ... {text[-15:]}"


@dataclass(frozen=True)
class SampleMeasure:
    """Measurements of a tokenizer on a text."""

    num_bytes: int
    num_tokens: int
    num_distinct: int
    num_unknown: int

    @property
    def bytes_per_token(self) -> float:
        """Compression: a larger number means fewer tokens."""
        return self.num_bytes / max(self.num_tokens, 1)


def measure_sample(tokenizer: Tokenizer, path: Path) -> SampleMeasure:
    """Encode a file, at most 64 MiB of it, and count the tokens."""
    counts = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    num_bytes = 0

    def windows() -> Iterator[bytes]:
        """Yield text up to token borders; a long stretch without one is cut anyway."""
        nonlocal num_bytes
        held = b""
        with open_file(path) as file:
            while num_bytes < _SAMPLE_BYTES and (block := file.read(_READ_BYTES)):
                num_bytes += len(block)
                held += block
                cut = tokenizer.last_cut(held) or (len(held) > _READ_BYTES and len(held))
                yield held[:cut]
                held = held[cut:]
        yield held

    try:
        # The package cuts a stream itself; native code encodes each window separately.
        streams = [windows()] if tokenizer.package is not None else ([text] for text in windows())
        for stream in streams:
            for ids in tokenizer.iter_encoded(stream):
                counts += _count_ids(ids, tokenizer.vocab_size)
    except OSError as error:
        raise from_os_error(error) from None
    unknown = tokenizer.special_tokens.get("<unk>") if tokenizer.kind == "char" else None
    return SampleMeasure(
        num_bytes=num_bytes,
        num_tokens=int(counts.sum()),
        num_distinct=int(np.count_nonzero(counts)),
        num_unknown=0 if unknown is None else int(counts[unknown]),
    )


def _count_ids(ids: npt.NDArray[np.int32], size: int) -> npt.NDArray[np.int64]:
    return np.bincount(ids, minlength=size)


def _describe_sample(tokenizer: Tokenizer, sample: Path) -> list[str]:
    measure = measure_sample(tokenizer, sample)
    used = 100 * measure.num_distinct / max(tokenizer.vocab_size, 1)
    lines = [
        f"on {format_size(measure.num_bytes)} of {sample}:",
        f"  {measure.num_tokens:,} tokens, {measure.bytes_per_token:.3f} bytes per token",
        f"  {measure.num_distinct:,} different ones, {used:.1f} % of the vocabulary",
    ]
    if measure.num_unknown:
        lines.append(f"  {measure.num_unknown:,} characters are unknown")
    return lines


def _first_lines(sample: Path) -> str:
    with open_file(sample) as file:
        text = file.read(4 * _SENTENCE_CHARACTERS).decode("utf-8", "replace")
    return text[:_SENTENCE_CHARACTERS]


def show_tokens(tokens: list[bytes], *, color: bool) -> str:
    r"""Show consecutive tokens, separated by bars or by colours.

    >>> show_tokens([b"The", b" cat", b"\n"], color=False)
    'The| cat|\\n'
    """
    texts = [
        token.decode("utf-8", "backslashreplace")
        .replace("\n", "\\n")
        .replace("\r", "\\r")
        .replace("\t", "\\t")
        for token in tokens
    ]
    texts = ["".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text) for text in texts]
    if not color:
        return "|".join(texts)
    painted = [
        f"\x1b[38;5;16;48;5;{_BACKGROUNDS[place % len(_BACKGROUNDS)]}m{text}"
        for place, text in enumerate(texts)
    ]
    return "".join(painted) + "\x1b[0m"
