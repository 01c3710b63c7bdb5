"""Small tokenizers in the shape of published families, made with the package `tokenizers`.

A row of FAMILIES is one family: how its tokenizer.json is put together. The vocabularies are
learned from texts of our own, so every machine has them; the shapes are those of the real files.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, trainers
from tokenizers import pre_tokenizers as pre

from .texts import make_text

CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = CL100K.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_HEADS, _TAILS = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_REST = r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = "|".join(
    [
        rf"[^\r\n\p{{L}}\p{{N}}]?{_HEADS}*{_TAILS}+{_ENDING}",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_HEADS}+{_TAILS}*{_ENDING}",
        _REST,
    ]
)
TEKKEN = O200K.replace(_ENDING, "").replace(r"\p{N}{1,3}", r"\p{N}")
END = "<|endoftext|>"


@cache
def training_texts() -> list[str]:
    """Texts of several scripts to learn from."""
    return [make_text(seed, num_words=400) for seed in range(8)]


def learn_bytes(
    pre_tokenizer: Any, *, normalizer: Any = None, ignore_merges: bool = False, size: int = 1500
) -> Tokenizer:
    """A byte-level BPE."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=pre.ByteLevel.alphabet(),
        special_tokens=[END],
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_texts(), trainer)
    return tokenizer


def by_expression(expression: str, behavior: str = "isolated", *, invert: bool = False) -> Any:
    """One Split, then bytes."""
    split = pre.Split(Regex(expression), behavior, invert)
    return pre.Sequence([split, pre.ByteLevel(add_prefix_space=False, use_regex=False)])


def own_expression() -> Any:
    """GPT-2's expression, which ByteLevel has."""
    return pre.ByteLevel(add_prefix_space=False, use_regex=True)


def qwen3() -> Tokenizer:
    tokenizer = learn_bytes(by_expression(QWEN2), normalizer=normalizers.NFC())
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in ("<think>", "</think>")])
    return tokenizer


def neox() -> Tokenizer:
    tokenizer = learn_bytes(own_expression(), normalizer=normalizers.NFC())
    tokenizer.add_tokens([AddedToken(" " * n, normalized=True) for n in range(24, 1, -1)])
    return tokenizer


def olmo2() -> Tokenizer:
    tokenizer = learn_bytes(by_expression(CL100K, "removed", invert=True))
    tokenizer.add_special_tokens(["<|fim_prefix|>", "<|im_start|>"])
    tokenizer.add_tokens([AddedToken("|||IP_ADDRESS|||", normalized=False)])
    return tokenizer


def digits() -> Tokenizer:
    steps = [pre.Digits(individual_digits=True), own_expression()]
    tokenizer = learn_bytes(pre.Sequence(steps))
    tokenizer.add_special_tokens(["<|im_start|>", "<repo_name>"])
    return tokenizer


def stripping() -> Tokenizer:
    """Added tokens that take blanks along, as RoBERTa and Phi have some."""
    tokenizer = learn_bytes(own_expression(), normalizer=normalizers.NFC())
    tokenizer.add_special_tokens(
        [AddedToken("<mask>", lstrip=True, normalized=False, special=True)]
    )
    tokenizer.add_tokens(
        [
            AddedToken("<|right|>", rstrip=True, normalized=False),
            AddedToken("<|both|>", lstrip=True, rstrip=True, normalized=True),
            AddedToken("e\u0301e\u0301", normalized=False),
            AddedToken("||", normalized=True),
        ]
    )
    return tokenizer


def single_words() -> Tokenizer:
    """Added tokens that depend on what is beside them in ways that native code does not know."""
    tokenizer = stripping()
    tokenizer.add_tokens(
        [
            AddedToken("word", single_word=True, normalized=True),
            AddedToken("caf\u00e9", normalized=True),
        ]
    )
    return tokenizer


def sentencepiece(normalizer: Any, pre_tokenizer: Any, *, strip: bool) -> Tokenizer:
    """A BPE of characters, with bytes for those that are not in it."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre.Split("▁", "merged_with_next")
    trainer = trainers.BpeTrainer(
        vocab_size=1500,
        limit_alphabet=300,
        special_tokens=["<unk>", "<s>", "</s>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_texts(), trainer)
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps + [decoders.Strip(" ", 1, 0)] * strip)
    return with_byte_tokens(tokenizer)


def with_byte_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """The same with the 256 tokens for bytes in its model, as published files have them."""
    import json

    contents = json.loads(tokenizer.to_str())
    vocab = contents["model"]["vocab"]
    for byte in range(256):
        vocab.setdefault(f"<0x{byte:02X}>", len(vocab))
    return Tokenizer.from_str(json.dumps(contents))


def llama2() -> Tokenizer:
    steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    return sentencepiece(normalizers.Sequence(steps), None, strip=True)


def llama2_saved_anew() -> Tokenizer:
    step = pre.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    return sentencepiece(None, step, strip=True)


def gemma() -> Tokenizer:
    split = pre.Split(" ", "merged_with_previous")
    return sentencepiece(normalizers.Replace(" ", "▁"), split, strip=False)


def bert() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=1500, special_tokens=names, show_progress=False)
    tokenizer.train_from_iterator(training_texts(), trainer)
    return tokenizer


def t5() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    )
    tokenizer.pre_tokenizer = pre.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=800,
        unk_token="<unk>",
        special_tokens=["<pad>", "</s>", "<unk>"],
        show_progress=False,
    )
    texts = ["".join(c for c in text if c < "\u0250") for text in training_texts()]
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def clip() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token=END, end_of_word_suffix="</w>"))
    steps = [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = own_expression()
    tokenizer.decoder = decoders.BPEDecoder("</w>")
    trainer = trainers.BpeTrainer(
        vocab_size=1500,
        end_of_word_suffix="</w>",
        special_tokens=[END],
        initial_alphabet=pre.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_texts(), trainer)
    return tokenizer


def falcon() -> Tokenizer:
    thirds = pre.Split(Regex("[0-9][0-9][0-9]"), "isolated")
    steps = [pre.Punctuation("contiguous"), own_expression(), pre.Digits(False), thirds]
    return learn_bytes(pre.Sequence(steps))


def words() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre.WhitespaceSplit()
    trainer = trainers.WordLevelTrainer(
        vocab_size=500, special_tokens=["<unk>"], show_progress=False
    )
    tokenizer.train_from_iterator(training_texts(), trainer)
    return tokenizer


FAMILIES: dict[str, Callable[[], Tokenizer]] = {
    "gpt2": lambda: learn_bytes(own_expression()),
    "llama3": lambda: learn_bytes(by_expression(CL100K), ignore_merges=True),
    "qwen3": qwen3,
    "qwen3.5": lambda: learn_bytes(by_expression(QWEN35), normalizer=normalizers.NFC()),
    "olmo2": olmo2,
    "gpt-neox": neox,
    "smollm2": digits,
    "o200k": lambda: learn_bytes(by_expression(O200K, "removed", invert=True), ignore_merges=True),
    "tekken": lambda: learn_bytes(by_expression(TEKKEN), ignore_merges=True),
    "roberta": stripping,
    "single words": single_words,
    "llama2": llama2,
    "llama2-v5": llama2_saved_anew,
    "gemma": gemma,
    "bert": bert,
    "t5": t5,
    "clip": clip,
    "falcon": falcon,
    "words": words,
}
NATIVE = (
    "gpt2", "llama3", "qwen3", "qwen3.5", "olmo2", "gpt-neox", "smollm2", "o200k", "tekken",
    "roberta",
)  # fmt: skip


@cache
def load_theirs(name: str) -> Tokenizer:
    """The package's tokenizer of a family, as a file has it: scores are rounded there."""
    return Tokenizer.from_str(FAMILIES[name]().to_str())


@cache
def load_theirs_as_text(name: str) -> Tokenizer:
    """The same, for which special tokens in a text are text."""
    tokenizer = Tokenizer.from_str(load_theirs(name).to_str())
    tokenizer.encode_special_tokens = True
    return tokenizer


def save(name: str, folder: Path) -> Path:
    """Write the tokenizer.json of a family."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tokenizer.json"
    load_theirs(name).save(str(path))
    return path
