"""Ids equal tiktoken's and Hugging Face's, with published vocabularies and our own, on any text."""

from __future__ import annotations

import lzma
import tempfile
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.tokenizer import Tokenizer
from lowtide.tokenizer.patterns import EXPRESSIONS
from lowtide.tokenizer.training import train_tokenizer

from .texts import make_texts

# Beside the repository, or beside the folder that holds its working trees.
SHARED = [root / "shared" for root in list(Path(__file__).parents)[3:5]]
SAMPLE_BYTES = 100_000

PUBLISHED = {"cl100k": "cl100k_base.tiktoken", "o200k": "o200k_base.tiktoken"}
# GPT-2's is installed with the tests. The others' are used where they are; vocabularies of our own
# with their patterns are learned here from texts of our own, so that every machine tests them.
VOCABULARIES = ["gpt2", "own-cl100k", "own-o200k", "cl100k", "o200k"]


def shared_file(name: str) -> Path:
    for folder in SHARED:
        if (folder / name).exists():
            return folder / name
    pytest.skip(f"../shared/{name} is not on this machine")


@cache
def load_ours(name: str) -> Tokenizer:
    if name in PUBLISHED:
        return Tokenizer.load(shared_file(f"vocab/{PUBLISHED[name]}"))
    return Tokenizer.load("gpt2") if name == "gpt2" else learn(name.removeprefix("own-"))


@cache
def learn(pattern: str) -> Tokenizer:
    """A vocabulary of 4,000 tokens of our own texts."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "texts.txt"
        # A file with NUL in it is no text to learn from; encoding takes all of them.
        path.write_text("".join(make_texts()).replace("\0", ""), encoding="utf-8")
        specials = ["<|endoftext|>"]
        return train_tokenizer(
            input=[path], vocab_size=4000, pattern=pattern, special_tokens=specials
        ).tokenizer


@cache
def load_tiktoken(name: str) -> object:
    """Build tiktoken's encoding from the vocabulary alone, so that nothing is downloaded."""
    import tiktoken

    ours = load_ours(name)
    special_ids = set(ours.special_tokens.values())
    ranks = {token: id for id, token in ours.vocabulary.items() if id not in special_ids}
    return tiktoken.Encoding(
        name,
        pat_str=EXPRESSIONS[name.removeprefix("own-")],  # pyright: ignore[reportArgumentType]
        mergeable_ranks=ranks,
        special_tokens=ours.special_tokens,
    )


@cache
def samples() -> list[str]:
    """Our own texts, some Python, and the beginning of every corpus that is here."""
    texts = make_texts()
    texts += [path.read_text() for path in sorted(Path(st.__file__).parent.glob("*.py"))]
    corpora = [path for folder in SHARED for path in sorted(folder.glob("corpora/**/*.*"))]
    for path in corpora:
        if path.suffix in (".xz", ".txt", ".jsonl"):
            with lzma.open(path) if path.suffix == ".xz" else path.open("rb") as file:
                texts.append(file.read(SAMPLE_BYTES).decode("utf-8", "replace"))
    return texts


NAMES = pytest.mark.parametrize("name", VOCABULARIES)
words = st.sampled_from(
    [" the", "\n\n", "  ", "'S", "'re", "naïve", "中文", "😀", "é", "\u0301", "1234", "...", "\r\n",
     "ſ", "\U0003d000", "\u0295", "\u0558", "a" * 40, "=" * 20, " " * 30, "<|endoftext|>", "Ⅷ", "ǅ",
     "\u3000", "हिन्दी", "ไทย"]
)  # fmt: skip
nasty = st.lists(words | st.text(max_size=6), max_size=30).map("".join)


@NAMES
def test_real_text_as_tiktoken(name: str) -> None:
    ours, theirs = load_ours(name), load_tiktoken(name)
    batch = ours.encode_batch(samples(), special="allow")
    for text, ids in zip(samples(), batch, strict=True):
        assert ids.tolist() == theirs.encode(text, allowed_special="all")
        assert ours.decode(ids) == text


@NAMES
@given(text=nasty)
@settings(max_examples=80, deadline=None)
def test_any_text_as_tiktoken(name: str, text: str) -> None:
    ours, theirs = load_ours(name), load_tiktoken(name)
    assert ours.encode(text, special="text").tolist() == theirs.encode_ordinary(text)
    assert ours.encode(text, special="allow").tolist() == theirs.encode(text, allowed_special="all")


@NAMES
@pytest.mark.parametrize(
    "text", ["\U0003d000:A", "a\U0003d000A", "A\u0295B", "1\U00011de0", "e\u1acf"]
)
def test_newer_characters_as_tiktoken(name: str, text: str) -> None:
    """Unassigned in tiktoken's Unicode, letters and numbers in newer ones."""
    assert load_ours(name).encode(text, special="text").tolist() == load_tiktoken(
        name
    ).encode_ordinary(text)


# The published o200k takes 20 seconds to load there.
@pytest.mark.parametrize("name", [name for name in VOCABULARIES if name != "o200k"])
def test_real_text_as_hugging_face(name: str, tmp_path: Path) -> None:
    from tokenizers import Tokenizer as HuggingFace

    ours = load_ours(name)
    ours.save(tmp_path)
    theirs = HuggingFace.from_file(str(tmp_path / "tokenizer.json"))
    for text in samples():
        text = text[:10_000]  # theirs takes a second for 100,000
        assert theirs.encode(text).ids == ours.encode(text, special="allow").tolist()
    assert Tokenizer.load(tmp_path).fingerprint == ours.fingerprint


def test_gpt2_by_vocab_and_merges_is_gpt2(tmp_path: Path) -> None:
    gpt2 = load_ours("gpt2")
    gpt2.save_vocabulary(tmp_path)
    assert Tokenizer.load(tmp_path).fingerprint == gpt2.fingerprint


def test_gpt2_by_the_published_files_is_gpt2(tmp_path: Path) -> None:
    gpt2 = load_ours("gpt2")
    published = shared_file("vocab/gpt2_vocab.json").parent
    (tmp_path / "vocab.json").write_bytes((published / "gpt2_vocab.json").read_bytes())
    (tmp_path / "merges.txt").write_bytes((published / "gpt2_merges.txt").read_bytes())
    assert Tokenizer.load(tmp_path).fingerprint == gpt2.fingerprint


@pytest.mark.parametrize("unit", ["a", " ", "😀", "ab", "aaaaaaaab", "\n", "="])
@NAMES
def test_long_runs_as_tiktoken(name: str, unit: str) -> None:
    text = unit * (3000 // len(unit))
    assert load_ours(name).encode(text).tolist() == load_tiktoken(name).encode_ordinary(text)
