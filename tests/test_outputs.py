"""Every word that commands say on a small world, and every number that they write, as they were.

`python tests/test_outputs.py` writes them anew where one is meant to change; what the clock,
the memory and the disk of a machine decide is left out. Much of what a command counts, sums up,
rounds or leaves out is seen here and nowhere else. So are the sizes, shares and limits that the
native core is given, with a memory that is the same everywhere.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import json
import pkgutil
import random
import re
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lowtide import _native
from lowtide.tokenizer import package

sys.path.insert(0, str(Path(__file__).parent / "damage"))
from world import make_world, run_command

_METADATA = ("dataset_metadata.json", "conversion.json", "classifier.json")
_WITH_PROCESSES = ("train-tokenizer", "train-classifier", "prepare", "append", "pretokenize",
                   "verify")  # fmt: skip
_SIZE = r"[\d.,]+ (?:[KMGT]i)?B"
# What is not the same everywhere, and what stands for it.
_MASKS = (
    (r"\b[\d.]+k? ?s\b(?=  )|(?<=: )[\d.]+s\b|\b\d+:\d\d\b", "TIME"),
    (r"tokens/s [\d.]+[kM]?|sample: .*|(?<=\"text\": )\".*\"|perplexity [\d.]+", "DRAWN"),
    (r"(?<=\.\d\d)\d\d(?= |,|$)", ""),  # of losses, as processors round
    (rf"(?:{_SIZE}|[\d.]+[kMG]? \w+)/s", "RATE"),
    (rf"(?<=memory ){_SIZE}|{_SIZE}(?= (?:are|is) free)|(?<=peak_memory_bytes\": )\d+", "MEMORY"),
    (rf"(?<=\.html: )(\w+), {_SIZE}", r"\1, PAGE"),  # times and paths are on pages, too
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*", "DATE"),
    (r"(?<![\w.])\d{16,}\b|(?<=\"xxh3_128\": )\"\w+\"", "STAMP"),  # the latter is of paths, too
    (r"(?<=\"settings_checksum\": )\"\w+\"", "STAMP"),
)
TEXT_COMMANDS = [
    "train-tokenizer --input a.txt --vocab-size 300 --out-dir again",
    "train-tokenizer --input a.txt --vocab-size 300 --out-dir tok",
    "train-tokenizer --input a.jsonl --kind char --out-dir characters",
    "train-tokenizer --config-file flags.json --min-frequency 3 --out-dir third",
    "train-tokenizer --input web.jsonl --vocab-size 330 --pattern cl100k --out-dir fourth "
    "--special-tokens <|a|> <|b|> --tie-break cs336 --max-token-bytes 6",
    "train-tokenizer --input good.txt a.txt.gz --vocab-size 6000 --out-dir fifth",
    "train-classifier --good good.txt --other a.txt --out-dir judge --buckets 500 --epochs 1",
    "prepare --input-files a.txt --tokenization tok --out-dir data --tokens-per-shard 2000",
    "prepare --input-files a.parquet a.txt.gz --tokenization tok --out-dir two",
    "prepare --input-files a.jsonl.xz --tokenization char --out-dir many --no-dedup "
    "--val-fraction 0",
    "prepare --input-files web.jsonl --out-dir ruled --tokenization tok --rules "
    "gopher,c4,fineweb,refinedweb --rule-limit c4.end-mark=0 --mask email,ip,phone,iban,card",
    "prepare --input-files web.jsonl --out-dir plain --tokenization gpt2 --min-line-chars 20 "
    "--max-line-chars 90 --near-dedup 0.7",
    "prepare --input-files a.txt good.txt --out-dir scored --tokenization tok --score score.ftz "
    "--language-model language.bin --languages en --keep-top 0.5",
    "prepare --input-files a.txt good.txt --out-dir stepped --tokenization tok --step step.py:keep "
    "--near-dedup 0.5 --decontaminate items.jsonl --no-filter",
    "prepare --input-files a.txt good.txt --out-dir files --tokenization tok --engine files",
    "prepare --input-files a.txt --out-dir dry --dry-run",
    "prepare --input-files web.jsonl --out-dir shuffled --tokenization characters --shuffle "
    "--seed 3 --tokens-per-shard 3000 --val-fraction 0.3 --lowercase --no-normalize",
    "prepare --input-files web.jsonl --out-dir limited --tokenization bpe --min-document-chars 300 "
    "--max-document-chars 700 --min-document-words 50 --max-repetition 0.2 --min-line-words 7 "
    "--min-dedup-chars 30",
    "prepare --input-files web.jsonl a.jsonl --out-dir above --tokenization gpt2.tiktoken "
    "--score quality/model.bin --keep-above 0.4",
    "prepare --input-files web.jsonl --out-dir shown --rules gopher,fineweb --mask email --dry-run",
    "prepare --input-files good.txt bad.txt --out-dir skipping --tokenization tok "
    "--skip-bad-inputs",
    "append shuffled --input-files good.txt a.txt",
    "append data --input-files good.txt",
    "append data --input-files good.txt",
    "append judged --input-files good.txt a.jsonl",
    "append two --input-files good.txt --engine files",
    "pretokenize good.txt --tokenization tok",
    "pretokenize good.txt a.txt --tokenization characters",
    "convert data converted --to nanogpt",
    "convert judged judged.npy --to npy",
    "convert llmc back --to lowtide --tokenization tok",
    "convert megatron taken --to lowtide --tokenizer tok",
    "convert nanogpt told --to lowtide --tokenizer tok --tokens-per-shard 3000 --val-fraction 0.2",
    "convert data packed --to llmc --tokens-per-shard 4000",
    "verify data",
    "verify judged --json",
    "inspect data",
    "inspect judged",
    "inspect tok",
    "inspect tok --sample a.txt",
    "inspect characters",
    "inspect a.npy",
    "inspect data --split val --start 5 --tokens 20 --show-ids",
    "inspect shuffled --tokens 30",
    "inspect bpe --sample web.jsonl",
    "inspect gpt2.tiktoken --text low",
    "inspect gpt2 --text naïveté",
    "inspect unigram.json --sample good.txt",
    "inspect nanogpt/train.bin --tokens 9",
    "inspect judged --json",
    "inspect data --json",
    "report data --out data.html",
    "report tok --sample a.txt --out tok.html",
    "report data two --out both.html",
    "prepare --input-files nothing.txt --out-dir new",
    "train-tokenizer --input a.txt --vocab-size 10 --out-dir new",
]
MODEL_COMMANDS = [
    "train --dataset-dir data --model-name more --target-params 10000 --seq-len 16 --batch-size 2 "
    "--max-iters 4 --eval-interval 2 --eval-iters 1 --sample-tokens 3 --device cpu",
    "train --dataset-dir data --model-name more --target-params 10000 --seq-len 16 --batch-size 2 "
    "--max-iters 4 --eval-interval 2 --eval-iters 1 --sample-tokens 3 --device cpu",
    "evaluate --model-name run --dataset-dir data --tasks tasks.jsonl --device cpu --eval-iters 2",
    "generate --model-name run --prompt low --max-new-tokens 5 --preset deterministic --device cpu",
    "generate --model-name run --prompt low --max-new-tokens 5 --num-samples 2 --seed 3 "
    "--device cpu --json",
    "generate --model-name run --prompt-file prompts.txt --each-line --max-new-tokens 4 "
    "--temperature 0 --stop e --device cpu",
    "evaluate --model-name run --dataset-dir data=data --split all --seq-len 8 --batch-size 3 "
    "--eval-iters 3 --device cpu --json",
    "export --model-name run --out-dir hf",
    "export --model-name run --out-dir half --dtype float16 --add-tokens tokens.txt",
    "export --model-name run --out-dir quantized --to gguf --type q8_0",
    "report run --out run.html",
    "report run more --out runs.html",
]


# Of these every call has other numbers: files by their descriptors, places in blocks.
_NOT_NOTED = ("start_writeback", "find_damaged_page")
KINDS = {"text": TEXT_COMMANDS, "models": MODEL_COMMANDS}


def stored_path(kind: str) -> Path:
    return Path(__file__).parent / "outputs" / f"{kind}.txt"


def masked(text: str, root: Path) -> str:
    text = re.sub(
        r"^.*[█░].*\n", "", text.replace(str(root), "WORLD"), flags=re.MULTILINE
    )  # by time
    for pattern, name in _MASKS:
        text = re.sub(pattern, name, text)
    return text


_COMMON = (
    "the of and to in that is was with for as on be at by this had not are from they which one all "
    "sea water tide sand boat wind stone coast light morning evening people walked found looked "
    "because through between under where little great never always again before after"
)
_NOISE = (
    "Read more...", "12 likes", "write to a.b@example.com or +49 30 1234567", "LOUD WORDS HERE",
    "server 192.168.10.24 answered", "javascript is off", "- a point\n- a point\n- a point",
    "lorem ipsum dolor", "DE89 3704 0044 0532 0130 00", "4111 1111 1111 1111", "...", "12345",
)  # fmt: skip


def write_web(path: Path) -> None:
    """Pages of sentences, some with what rules and masks look for, some twice or nearly so."""
    source, words = random.Random(5), _COMMON.split()
    pages: list[str] = []
    for number in range(40):
        sentences = (" ".join(source.choices(words, k=source.randrange(5, 16))) for _ in range(9))
        lines = [f"{sentence.capitalize()}." for sentence in sentences]
        if number % 3 == 0:
            lines.insert(source.randrange(9), _NOISE[number // 3 % len(_NOISE)])
        if number % 7 == 0:
            lines = lines[:3] * 4
        pages.append("\n".join(lines))
    pages += [pages[1], pages[2].replace("the", "a"), "short", pages[4].upper()]
    path.write_text("".join(json.dumps({"text": page}) + "\n" for page in pages))


def iter_outputs(root: Path, commands: list[str]) -> Iterator[str]:
    """What each command says, and the metadata of what they made."""
    with contextlib.chdir(root):
        for command in commands:
            more = [] if command.startswith("plan") else ["--memory", "2GiB"]
            more += ["--processes", "1"] if command.split()[0] in _WITH_PROCESSES else []
            code, out, err = run_command([*command.split(), *more])
            yield f"$ lowtide {command}\nexit {code}\n{masked(out, root)}--\n{masked(err, root)}"
        for path in sorted(root.rglob("*.json")) if commands is TEXT_COMMANDS else ():
            if path.name in _METADATA:
                shown = json.dumps(json.loads(path.read_text()), indent=1, sort_keys=True)
                yield f"# {path.relative_to(root)}\n{masked(shown, root)}\n"


def import_text_side() -> None:
    """Import what may name classes of the native module as types, which stand-ins are not."""
    stages = ("corpus", "tokenizer", "dataset", "classifier", "engine", "loader", "reporting")
    for stage in stages:
        package = importlib.import_module(f"lowtide.{stage}")
        for module in pkgutil.walk_packages(package.__path__, f"lowtide.{stage}."):
            importlib.import_module(module.name)


def steady_memory(patch: pytest.MonkeyPatch) -> None:
    """Measure the same memory everywhere: what is shared out of a budget is then the same."""
    sizes = {"tree_resident_bytes": 64 << 20, "resident_bytes": 64 << 20,
             "process_peak_bytes": 64 << 20, "available_bytes": 8 << 30}  # fmt: skip
    for name, size in sizes.items():
        for module in [one for key, one in sys.modules.items() if key.startswith("lowtide.")]:
            if callable(vars(module).get(name)):
                patch.setattr(module, name, lambda *given, size=size: size)


@contextlib.contextmanager
def noting_native_calls() -> Iterator[dict[str, set[str]]]:
    """The numbers that every function and class of the native module is given."""
    noted: dict[str, set[str]] = defaultdict(set)

    def stand_in(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            numbers = [repr(value) for value in given if isinstance(value, int | float)]
            numbers += [f"{key}={named[key]}" for key in sorted(named)
                        if isinstance(named[key], int | float)]  # fmt: skip
            noted[name].add(" ".join(numbers))
            return real(*given, **named)

        return call

    import_text_side()
    with pytest.MonkeyPatch.context() as patch:
        steady_memory(patch)
        for name in dir(_native):
            real = getattr(_native, name)
            if callable(real) and not name.startswith("_") and name not in _NOT_NOTED:
                patch.setattr(_native, name, stand_in(name, real))
        yield noted


def outputs_of(kind: str) -> list[str]:
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        root = Path(folder).resolve()
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(package, "_told", threading.Lock())  # whatever this process was told before
        noted = stack.enter_context(noting_native_calls()) if kind == "text" else {}
        make_world(root, with_model=kind == "models")
        write_web(root / "web.jsonl")
        (root / "prompts.txt").write_text("low\nthe tide\n")
        (root / "bad.txt").write_bytes("good so far\n".encode("utf-16") + b"\xff")
        lines = "\n".join(iter_outputs(root, KINDS[kind])).splitlines()
        lines += [f"{name}: {'; '.join(sorted(rows))}" for name, rows in sorted(noted.items())]
        return lines


@pytest.mark.parametrize("kind", KINDS)
def test_everything_is_said_as_it_was(kind: str) -> None:
    found, stored = outputs_of(kind), stored_path(kind).read_text(encoding="utf-8").splitlines()
    changed = list(difflib.unified_diff(stored, found, "stored", "now", n=2, lineterm=""))
    assert not changed, "\n".join(changed)


if __name__ == "__main__":
    for name in KINDS:
        stored_path(name).write_text("\n".join(outputs_of(name)) + "\n", encoding="utf-8")
