"""Memory to tokenize a run's text, so that an error about the budget includes it.

In:      TrainSettings with an input file, or a stream of files that a tokenizer is learned from
Out:     the smallest budget to learn a tokenizer from it, and to encode it, with
Memory:  a part of the text; the given tokenizer
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lowtide import _native
from lowtide.corpus.footprint import reader_bytes
from lowtide.corpus.inputs import InputFile, expand_inputs, names_files
from lowtide.corpus.reading import ReadingSettings, is_plain_text
from lowtide.dataset import npywriting, pretokenizingplan
from lowtide.dataset.provenance import npy_path
from lowtide.errors import LowtideError
from lowtide.filenames import TOKENIZER_NAME
from lowtide.memory import round_up_mib, tree_resident_bytes, usable_cores
from lowtide.tokenizer import Tokenizer, counting, countingplan
from lowtide.tokenizer.stretches import LastCut, Stretch, find_stretch
from lowtide.tokenizer.vocabulary import END_OF_TEXT
from lowtide.training.settings import TrainSettings

__all__ = ["OWN_TOKEN_BYTES", "TOKENS_NAME", "least_text_bytes", "text_budget_bytes"]

TOKENS_NAME = "tokens.npy"
"""The ids of a run's text, in its folder `data`."""
OWN_TOKEN_BYTES = 1024
"""Limit of the tokens that a run learns for itself: longer ones would pass its budget."""
_GROWTH_BYTES = 24 << 20  # loaded by the process until then: vocabularies, decompressors
_SMALL_WINDOW = 10 << 20  # memory to decompress most files


def least_text_bytes(settings: TrainSettings) -> int:
    """The least memory of tokenizing any text; 0 if there is nothing to tokenize."""
    sources = _texts_to_tokenize(settings)
    return tree_resident_bytes() + max(_stages(settings, sources, None)) if sources else 0


def text_budget_bytes(settings: TrainSettings) -> int:
    """The budget to advise for tokenizing, after a scan of all text; 0 without any."""
    sources = _texts_to_tokenize(settings)
    if not sources:
        return 0
    options = ReadingSettings(reader_bytes=_SMALL_WINDOW)
    cut = _last_cut(settings)
    stretch = Stretch() if cut is None else find_stretch(sources, options, cut)
    needed = tree_resident_bytes() + max(_stages(settings, sources, stretch))
    return round_up_mib(needed + _GROWTH_BYTES) << 20


def _texts_to_tokenize(settings: TrainSettings) -> Sequence[InputFile]:
    """The text of a run that has no tokens of it yet, or no tokenizer learned from all of it.

    A stream without --vocab-size has its tokenizer learned from a sample, which needs little.
    """
    path, stream, run = settings.data.input_file, settings.data.dataset_id, settings.run
    made = Path(TOKENS_NAME) if stream is None else Path("tokenizer", TOKENIZER_NAME)
    if (run.folder / "data" / made).is_file() and not run.overwrite:
        return []
    if stream is not None:
        learns = settings.data.vocab_size is not None and settings.data.tokenization is None
        if not learns or not names_files(stream):
            return []
        try:
            return expand_inputs([stream])
        except LowtideError:  # reading it will report what is wrong
            return []
    if path is None or path.suffix == ".npy" or not path.is_file() or npy_path(path).is_file():
        return []
    return expand_inputs([path])


def _learns(settings: TrainSettings) -> bool:
    if settings.data.tokenization is not None:
        return False
    return settings.data.vocab_size is not None or settings.run.init_from_model is None


def _stages(
    settings: TrainSettings, sources: Sequence[InputFile], stretch: Stretch | None
) -> list[int]:
    """Bytes of each stage besides the program; for the fewest workers if nothing was scanned."""
    try:
        reading = reader_bytes(sources, ReadingSettings(text_field=settings.data.text_field))
    except (OSError, LowtideError):
        return [0]  # reading it will report what is wrong
    is_plain = all(is_plain_text(source, encoding="utf-8") for source in sources)
    workers = 1 if stretch is None else usable_cores()
    needs: list[int] = []
    if settings.data.dataset_id is None:  # a stream is encoded as it is read
        named = settings.data.tokenization or "gpt2"  # a learned one is encoded natively too
        needs = [pretokenizingplan.fixed_bytes(named, workers, is_plain=is_plain, reading=reading)]
        if stretch is not None and is_plain:
            normalizes = named != "char" and Tokenizer.load(named).data.normalizer != "none"
            needs[0] += npywriting.held_bytes(stretch, normalizes)
    if _learns(settings):
        held = 0 if stretch is None else counting.held_bytes(stretch, OWN_TOKEN_BYTES)
        needs.append(
            countingplan.needed_bytes(workers, is_plain=is_plain, reading=reading, held_bytes=held)
        )
    return needs


def _last_cut(settings: TrainSettings) -> LastCut | None:
    """Finds where the text can be cut; None if anywhere, or if only the package knows."""
    if _learns(settings):
        return lambda text: _native.last_cut(text, [END_OF_TEXT.encode()])
    name = settings.data.tokenization
    if name is None or name == "char":
        return None
    tokenizer = Tokenizer.load(name)
    return tokenizer.last_cut if tokenizer.kind == "bpe" else None
