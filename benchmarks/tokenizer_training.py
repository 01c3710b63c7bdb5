"""Time and memory of BPE training: lowtide and its peers, in one run.

In:      a text file with <|endoftext|> between documents
Out:     a Markdown table on stdout

    python benchmarks/tokenizer_training.py --text enwiki.txt --vocab-size 32000 --rounds 3
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from peers import describe_machine, print_table, run_rounds

SPECIAL = "<|endoftext|>"
PEERS = ("gigatoken", "ffbpe", "rustbpe", "huggingface")


def train_lowtide(path: Path, vocab_size: int, memory: str | None) -> int:
    from lowtide import train_tokenizer

    with tempfile.TemporaryDirectory() as folder:
        trained = train_tokenizer(
            input=[path], vocab_size=vocab_size, memory=memory, out_dir=Path(folder, "tok")
        )
    return len(trained.tokenizer.merges)


def train_gigatoken(path: Path, vocab_size: int) -> int:
    import gigatoken

    _, merges = gigatoken.train_bpe(str(path), vocab_size, [SPECIAL], separator=SPECIAL.encode())
    return len(merges)


def documents(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split(SPECIAL)


def train_ffbpe(path: Path, vocab_size: int) -> int:
    import ffbpe

    ffbpe.train_bpe(documents(path), vocab_size=vocab_size, special_tokens=[SPECIAL])
    return vocab_size - 257


def train_rustbpe(path: Path, vocab_size: int) -> int:
    import rustbpe

    tokenizer = rustbpe.Tokenizer()
    pattern = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    tokenizer.train_from_iterator(iter(documents(path)), vocab_size - 1, pattern=pattern)
    return len(tokenizer.get_mergeable_ranks()) - 256


def train_huggingface(path: Path, vocab_size: int) -> int:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents(path), trainer)
    return tokenizer.get_vocab_size() - 257


def contend(name: str, path: Path, vocab_size: int, memory: str | None) -> None:
    """Run one contender and print its measurements, without its imports."""
    trainers = {
        "gigatoken": train_gigatoken,
        "ffbpe": train_ffbpe,
        "rustbpe": train_rustbpe,
        "huggingface": train_huggingface,
    }
    start = time.perf_counter()
    if name == "lowtide":
        merges = train_lowtide(path, vocab_size, memory)
    else:
        merges = trainers[name](path, vocab_size)
    print(json.dumps({"seconds": time.perf_counter() - start, "merges": merges}))


def main() -> None:
    """Run all contenders and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--vocab-size", type=int, default=32000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", help="lowtide's budget; half of what is available by default")
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=PEERS)
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contender:
        contend(arguments.contender, arguments.text, arguments.vocab_size, arguments.memory)
        return
    passed = ["--text", str(arguments.text), "--vocab-size", str(arguments.vocab_size)]
    if arguments.memory:
        passed += ["--memory", arguments.memory]
    names = ["lowtide", *arguments.peers]
    results = run_rounds(__file__, names, rounds=arguments.rounds, arguments=passed)
    size = arguments.text.stat().st_size / 1e6
    title = f"BPE training, {size:.0f} MB, vocabulary {arguments.vocab_size} ({describe_machine()})"
    print_table(title, results, megabytes=size)


if __name__ == "__main__":
    main()
