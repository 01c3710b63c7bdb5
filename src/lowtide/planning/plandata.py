"""The data a plan is for: how many tokens, how much text, what vocabulary.

In:      a dataset, text files, or a number of tokens
Out:     DataFacts
Memory:  names and sizes of files; samples of a few MiB, of bytes per token and distinct pieces
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

from lowtide.corpus.hub import hub_name
from lowtide.corpus.inputs import InputFile, expand_inputs, names_files
from lowtide.corpus.reading import check_text_field
from lowtide.dataset.resources import estimate_text_bytes
from lowtide.loader.sources import find_tokens
from lowtide.memory import format_size
from lowtide.planning.machine import Machine
from lowtide.planning.settings import PlanSettings
from lowtide.progress import format_count
from lowtide.quickclasses import dataclass
from lowtide.settings import build_settings
from lowtide.tokenizer import Tokenizer
from lowtide.tokenizer.footprint import estimate_distinct_bytes
from lowtide.tokenizer.vocabulary import id_bytes
from lowtide.training.choosing import learned_vocabulary
from lowtide.training.settings import TrainSettings

__all__ = ["DataFacts", "bytes_per_token", "find_data"]

_SAMPLE_BYTES = 1 << 20
_TRAIN_SHARE = 0.9  # the train split of lowtide prepare
_GPT2_VOCABULARY = 50257
# Vocabularies by memory (GiB), as the guides recommend them.
_VOCABULARIES = ((8, 8000), (16, 16000), (math.inf, 32000))
_SMALLEST_VOCABULARY = 500


@dataclass(frozen=True)
class DataFacts:
    """What is known about the data before it is read."""

    description: str
    vocab_size: int
    text_bytes: int | None
    """Bytes of text to tokenize; None if it is tokenized already, or nothing is named."""
    train_tokens: int | None
    """Tokens to train on; None if nothing is named."""
    learns_tokenizer: bool
    """Whether a tokenizer is trained first."""
    bytes_per_token: float
    dataset_dir: Path | None = None
    distinct_bytes: int | None = None
    """Bytes of all distinct pieces of the text, estimated from a sample; None without one."""
    line_bytes: float | None = None
    """Bytes of a line, estimated from a sample; None without one."""
    streams: bool = False
    """Whether text is tokenized while training reads it."""

    def for_tokens(self, tokens: int) -> DataFacts:
        """The facts for as much text as gives so many training tokens."""
        return dataclasses.replace(
            self,
            description=f"{self.description}; about {format_count(tokens)} training tokens are "
            "wanted",
            text_bytes=None if self.streams else int(tokens / _TRAIN_SHARE * self.bytes_per_token),
        )

    @property
    def token_bytes(self) -> int:
        """Bytes of an id on the disk."""
        return id_bytes(self.vocab_size)


def bytes_per_token(vocab_size: int) -> float:
    """Estimate the bytes of English text in a token: 4.6 at 32 thousand, 0.4 less each halving.

    Measured on Wikipedia: 2.5 with a vocabulary of 1000, 3.8 with 8000, 4.2 with 16000; other
    languages and code have fewer.
    """
    return max(1.0, min(4.6, 4.57 - 0.41 * math.log2(32000 / vocab_size)))


def find_data(settings: PlanSettings, machine: Machine) -> DataFacts:
    """Inspect the named data; only sizes, headers and one sample are read."""
    if settings.dataset_dir is not None:
        return _stored_tokens(settings.dataset_dir, settings)
    tokenizer = None
    if settings.tokenization not in (None, "char"):
        tokenizer = Tokenizer.load(str(settings.tokenization))
    learns = settings.tokenization is None
    vocabulary = settings.vocab_size or _usual_vocabulary(settings, machine)
    if tokenizer is not None:
        vocabulary = tokenizer.vocab_size
    elif settings.tokenization == "char":
        vocabulary = 256
    ratio = 1.0 if settings.tokenization == "char" else bytes_per_token(vocabulary)
    if settings.dataset_id is not None:
        return _streamed(settings.dataset_id, settings, vocabulary, ratio)
    if hub := list(filter(None, map(hub_name, settings.input_files))):
        what = f"{hub[0]}: how much text it has is known once it is read"
        return DataFacts(what, vocabulary, None, None, learns, ratio)
    if not settings.input_files:
        tokens = settings.num_tokens
        text = None if tokens is None else int(tokens / _TRAIN_SHARE * ratio)
        what = "none named" if tokens is None else f"{format_count(tokens)} training tokens"
        return DataFacts(what, vocabulary, text, tokens, learns, ratio)
    inputs = expand_inputs(settings.input_files)
    check_text_field(inputs, settings.text_field)
    how = "estimated for English"
    if tokenizer is not None and (measured := _measure_ratio(tokenizer, inputs)) is not None:
        ratio, how = measured, "measured on a sample"
    text = estimate_text_bytes(inputs)
    tokens = int(text / ratio * _TRAIN_SHARE)
    return DataFacts(
        f"{len(inputs)} file{'s' if len(inputs) > 1 else ''}, {format_size(text)} of text, about "
        f"{format_count(tokens)} training tokens ({ratio:.2f} bytes per token, {how})",
        vocabulary,
        text,
        tokens,
        learns,
        ratio,
        distinct_bytes=estimate_distinct_bytes(inputs, text) if learns else None,
        line_bytes=_measure_lines(inputs),
    )


def _streamed(name: str, settings: PlanSettings, vocabulary: int, ratio: float) -> DataFacts:
    """Inspect data to stream: the size of files is known, that of a hub dataset is not."""
    local = names_files(name)
    learns = settings.tokenization is None
    tokens = settings.num_tokens
    if local and tokens is None:
        tokens = int(estimate_text_bytes(expand_inputs([name])) / ratio)
    what = f"{name}, streamed"
    if tokens is not None:
        what += f": about {format_count(tokens)} training tokens"
    return DataFacts(what, vocabulary, None, tokens, learns, ratio, streams=True)


def _stored_tokens(path: Path, settings: PlanSettings) -> DataFacts:
    source = find_tokens(path, split="train")
    vocabulary = source.vocab_size or settings.vocab_size or _GPT2_VOCABULARY
    return DataFacts(
        f"{source.place}, {format_count(source.num_tokens)} training tokens, "
        f"vocabulary {vocabulary:,}",
        vocabulary,
        None,
        source.num_tokens,
        False,
        bytes_per_token(vocabulary),
        dataset_dir=path,
    )


def _usual_vocabulary(settings: PlanSettings, machine: Machine) -> int:
    """Return the vocabulary size that suits the machine, smaller for little text.

    The suitable model grows with the text, its width with the square root of that, and so does the
    vocabulary. 3 MB get 1300, 100 MB 8000.
    """
    gib = machine.ram_bytes / (1 << 30)
    usual = next(size for limit, size in _VOCABULARIES if gib <= limit)
    files = list(settings.input_files)
    if settings.dataset_id is not None and names_files(settings.dataset_id):
        files = [settings.dataset_id]
    is_known = bool(files) and not any(map(hub_name, files))
    text = estimate_text_bytes(expand_inputs(files)) if is_known else None
    if settings.names_a_model:  # what lowtide train would learn by itself
        training = build_settings(TrainSettings, settings.training_options())
        streamed = settings.dataset_id is not None
        return learned_vocabulary(
            training.data.vocab_size, training.model, None if streamed else text
        )
    if text is None and settings.num_tokens is not None:
        text = int(settings.num_tokens * bytes_per_token(usual))
    if text is None:
        return usual
    return min(usual, max(_SMALLEST_VOCABULARY, int(0.8 * math.sqrt(text)) // 100 * 100))


def _measure_ratio(tokenizer: Tokenizer, inputs: Sequence[InputFile]) -> float | None:
    """Return the bytes per token of the first plain file's beginning."""
    sample = _sample(inputs)
    return len(sample) / len(tokenizer.encode(sample, special="text")) if sample else None


def _measure_lines(inputs: Sequence[InputFile]) -> float | None:
    """Return the bytes of a line of the first plain file's beginning."""
    sample = _sample(inputs)
    return len(sample) / (1 + sample.count(b"\n")) if sample else None


def _sample(inputs: Sequence[InputFile]) -> bytes:
    plain = [
        row.path for row in inputs if row.format.block_kind == "text" and row.compression is None
    ]
    if not plain:
        return b""
    with plain[0].open("rb") as file:
        return file.read(_SAMPLE_BYTES)
