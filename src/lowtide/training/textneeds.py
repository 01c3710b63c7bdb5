"""What tokenizing a run's text takes, so that a refusal of the run names it beside its own needs.

In:      TrainSettings with an input file
Out:     the smallest budget to learn a tokenizer from it, and to encode it, with
Memory:  a part of the text; a tokenizer that is named
"""

from __future__ import annotations

from lowtide import _native
from lowtide.corpus.footprint import reader_bytes
from lowtide.corpus.inputs import InputFile, expand_inputs
from lowtide.corpus.reading import ReadingSettings, is_plain_text
from lowtide.dataset import npywriting, pretokenizingplan
from lowtide.dataset.provenance import npy_path
from lowtide.errors import LowtideError
from lowtide.memory import round_up_mib, tree_resident_bytes, usable_cores
from lowtide.tokenizer import Tokenizer, counting, countingplan
from lowtide.tokenizer.stretches import LastCut, Stretch, find_stretch
from lowtide.tokenizer.vocabulary import END_OF_TEXT
from lowtide.training.settings import TrainSettings

__all__ = ["TOKENS_NAME", "least_text_bytes", "text_budget_bytes"]

TOKENS_NAME = "tokens.npy"
"""The ids of a run's text, in its folder `data`."""
_GROWTH_BYTES = 24 << 20  # what the process will have loaded by then: vocabularies, decompressors
_SMALL_WINDOW = 10 << 20  # what decompressing takes of most files


def least_text_bytes(settings: TrainSettings) -> int:
    """What tokenizing takes whatever the text is; 0 where there is nothing to tokenize."""
    source = _text_to_tokenize(settings)
    return 0 if source is None else tree_resident_bytes() + max(_stages(settings, source, None))


def text_budget_bytes(settings: TrainSettings) -> int:
    """The budget to name for tokenizing, when all of the text was looked at; 0 without any."""
    source = _text_to_tokenize(settings)
    if source is None:
        return 0
    options = ReadingSettings(reader_bytes=_SMALL_WINDOW)
    cut = _last_cut(settings)
    stretch = Stretch() if cut is None else find_stretch([source], options, cut)
    needed = tree_resident_bytes() + max(_stages(settings, source, stretch))
    return round_up_mib(needed + _GROWTH_BYTES) << 20


def _text_to_tokenize(settings: TrainSettings) -> InputFile | None:
    """The text of a run that has no tokens of it yet."""
    path, run = settings.data.input_file, settings.run
    if path is None or path.suffix == ".npy" or not path.is_file() or npy_path(path).is_file():
        return None
    if (run.folder / "data" / TOKENS_NAME).is_file() and not run.overwrite:
        return None
    return expand_inputs([path])[0]


def _learns(settings: TrainSettings) -> bool:
    if settings.data.tokenization is not None:
        return False
    return settings.data.vocab_size is not None or settings.run.init_from_model is None


def _stages(settings: TrainSettings, source: InputFile, stretch: Stretch | None) -> list[int]:
    """Bytes of each stage beside the program; of its fewest workers where nothing was looked at."""
    try:
        reading = reader_bytes([source], ReadingSettings(text_field=settings.data.text_field))
    except (OSError, LowtideError):
        return [0]  # whoever reads it says what is wrong
    is_plain = is_plain_text(source, encoding="utf-8")
    workers = 1 if stretch is None else usable_cores()
    named = settings.data.tokenization or "gpt2"  # what is learned is encoded as natively
    needs = [pretokenizingplan.fixed_bytes(named, workers, is_plain=is_plain, reading=reading)]
    if stretch is not None and is_plain:
        normalizes = named != "char" and Tokenizer.load(named).data.normalizer != "none"
        needs[0] += npywriting.held_bytes(stretch, normalizes)
    if _learns(settings):
        held = 0 if stretch is None else counting.held_bytes(stretch)
        needs.append(
            countingplan.needed_bytes(workers, is_plain=is_plain, reading=reading, held_bytes=held)
        )
    return needs


def _last_cut(settings: TrainSettings) -> LastCut | None:
    """Where the text can be cut; None if it can be everywhere, or only a package knows."""
    if _learns(settings):
        return lambda text: _native.last_cut(text, [END_OF_TEXT.encode()])
    name = settings.data.tokenization
    if name is None or name == "char":
        return None
    tokenizer = Tokenizer.load(name)
    return tokenizer.last_cut if tokenizer.kind == "bpe" else None
