"""The verbs for text: from text to tokenizers, datasets, and other programs' files of ids.

In:      a verb's settings
Out:     Answers; each stage is imported when its verb runs
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowtide.answers import Answer, answer, to_json
from lowtide.counts import counted
from lowtide.errors import DataError, UsageError, printable

if TYPE_CHECKING:
    from lowtide.classifier.settings import ClassifierSettings
    from lowtide.dataset.settings import (
        AppendSettings,
        ConvertSettings,
        InspectSettings,
        PrepareSettings,
        PretokenizeSettings,
        VerifySettings,
    )
    from lowtide.tokenizer.settings import TokenizerTrainingSettings

__all__ = [
    "run_append",
    "run_convert",
    "run_inspect",
    "run_prepare",
    "run_pretokenize",
    "run_train_classifier",
    "run_train_tokenizer",
    "run_verify",
]


def run_train_tokenizer(settings: TokenizerTrainingSettings) -> Answer:
    """Learn a BPE or character tokenizer from text of any size.

    lowtide train-tokenizer --input books.txt --vocab-size 32000 --out-dir tok/books --memory 1GiB
    lowtide train-tokenizer --input 'wiki/*.jsonl.zst' --out-dir tok/wiki
    """
    from lowtide.tokenizer.trained import describe_trained
    from lowtide.tokenizer.training import train_tokenizer

    if settings.out_dir is None:
        raise UsageError("no folder for the tokenizer", next_step="--out-dir tok/mine")
    trained = train_tokenizer(settings)
    return answer(
        describe_trained(trained, settings.out_dir),
        out_dir=settings.out_dir,
        kind=trained.tokenizer.kind,
        vocab_size=trained.tokenizer.vocab_size,
        fingerprint=trained.tokenizer.fingerprint,
        counts=trained.record["counts"],
        was_there=trained.was_there,
    )


def run_train_classifier(settings: ClassifierSettings) -> Answer:
    """Train a fastText classifier of text quality, for prepare --score.

    lowtide train-classifier --good law/ --other crawl/part-000.jsonl --out-dir quality/law
    lowtide train-classifier --good 'notes/*.md' --other forum.parquet --out-dir q --memory 500MB
    """
    from lowtide.classifier.describing import describe_classifier
    from lowtide.classifier.training import train_classifier

    trained = train_classifier(settings)
    return answer(
        describe_classifier(trained),
        path=trained.path,
        was_there=trained.was_there,
        **{name: trained.record[name] for name in ("examples", "words", "held_out")},
    )


def run_prepare(settings: PrepareSettings) -> Answer:
    """Turn text of any size into shuffled, deduplicated, checked shards of token ids.

    lowtide prepare --input-files books/ --tokenization tok/books --out-dir data/books --memory 1GiB
    lowtide prepare --input-files 'logs/*.jsonl.zst' --text-field body --out-dir data/logs --dry-run
    lowtide prepare --input-files crawl/ --score q/model.bin --keep-top 0.1 --out-dir data/crawl
    """
    from lowtide.dataset.preparation import prepare_dataset
    from lowtide.dataset.summary import dataset_facts, describe_preparation

    result = prepare_dataset(settings)
    return answer(
        describe_preparation(result),
        **dataset_facts(result.dataset),
        was_there=result.was_there,
        cleaning=result.report,
        notices=result.notices,
        seconds=result.seconds,
        peak_bytes=result.peak_bytes,
        budget_bytes=result.budget_bytes,
    )


def run_pretokenize(settings: PretokenizeSettings) -> Answer:
    """Tokenize text files into .npy files of ids beside them, removing nothing.

    lowtide pretokenize books.txt --tokenization gpt2
    """
    from lowtide.dataset.pretokenization import iter_pretokenized
    from lowtide.dataset.summary import describe_pretokenization

    parts = (printable(describe_pretokenization(row)) for row in iter_pretokenized(settings))
    return Answer(parts, field="files", rows=lambda: iter_pretokenized(settings))


def run_append(settings: AppendSettings) -> Answer:
    """Add new text to a finished dataset, leaving its existing documents unchanged.

    lowtide append data/books --input-files more-books/
    """
    from lowtide.dataset.appending import append_to_dataset
    from lowtide.dataset.summary import dataset_facts, describe_append

    result = append_to_dataset(settings)
    return answer(
        describe_append(result),
        **dataset_facts(result.info),
        added_tokens=result.added_tokens,
        added_shards=result.added_shards,
        was_there=result.was_there,
        cleaning=result.report,
        notices=result.notices,
    )


def run_verify(settings: VerifySettings) -> Answer:
    """Check every byte, id and document end of a dataset.

    lowtide verify data/books
    """
    from lowtide.dataset.summary import describe_verification
    from lowtide.dataset.verification import verify_dataset

    result = verify_dataset(settings)
    error = None
    if result.problems:
        count = counted(len(result.problems), "problem")
        error = DataError(
            "\n  ".join([f"{count}:", *result.problems]),
            path=settings.dataset_dir,
            next_step="bring back the files named, or prepare the text again",
        )
    text = printable(describe_verification(result))
    return Answer([text], lambda: {"ok": error is None, **to_json(result)}, error=error)


def run_convert(settings: ConvertSettings) -> Answer:
    """Import other programs' files of token ids as a dataset, or export a dataset for them.

    lowtide convert data/books bin/books --to nanogpt
    lowtide convert openwebtext/ data/owt --from nanogpt --to lowtide
    """
    from lowtide.dataset.conversion import convert_dataset

    result = convert_dataset(settings)
    first = "is there already, nothing was touched: " if result.was_there else ""
    text = "\n".join([f"{first}{result.num_tokens:,} tokens", *map(str, result.paths)])
    return answer(text, **to_json(result))


def run_inspect(settings: InspectSettings) -> Answer:
    """Show the contents of a dataset or a tokenizer, and text as tokens.

    lowtide inspect data/books --start 1000 --tokens 50
    lowtide inspect tok/books --text 'How is this split?'
    lowtide inspect data/books --test-loading
    lowtide inspect tokens.npy --test-loading
    """
    from lowtide.loader.inspection import inspect

    found = inspect(settings)
    return Answer([found.text], lambda: found.facts)
