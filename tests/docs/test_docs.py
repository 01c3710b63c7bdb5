"""What the guides show works: commands and examples are run as they stand, links lead somewhere.

Blocks marked `sh` and `python` are run in the order they stand, in a folder that has the files they
name; only steps, lengths of rows and numbers of evaluated rows are cut. Blocks marked `console`
need a GPU, other machines or minutes; their commands are read as the command line reads them.
docs/load.md has tests in tests/loader.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import re
import shlex
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from lowtide import cli
from lowtide.aliases import SAME_SETTINGS
from lowtide.configfiles import config_names
from lowtide.flags import flag_name
from lowtide.training.settings import TrainSettings

DOCS = Path(__file__).parents[2] / "docs"
ROOT = DOCS.parent
PAGES = sorted(path.name for path in DOCS.glob("*.md"))
# In the order of the work.
GUIDES = [
    "installing.md",
    "tokenizer.md",
    "prepare.md",
    "quality.md",
    "load.md",
    "train.md",
    "adapt.md",
    "fit-a-small-machine.md",
    "gpu.md",
    "jax.md",
    "many-machines.md",
    "object-stores.md",
    "formats.md",
    "memory-model.md",
    "coming-from.md",
    "gallery.md",
    "python.md",
    "report.md",
    "troubleshooting.md",
]
TINY = {"num_layers": 1, "width": 16, "num_heads": 1, "seq_len": 32, "batch_size": 2}
CHAR = "--tokenization char --memory 500MB"
BASE = [
    f"lowtide prepare --input-files wiki.txt books/ --out-dir data/general {CHAR}",
    "lowtide train --dataset-dir data/general --model-name base --config-file 150M "
    "--max-iters 2 --memory 2GiB",
]
# What a page takes for granted.
BEFORE = {
    "train.md": ["lowtide prepare --input-files notes.txt --out-dir data/general --memory 500MB"],
    "adapt.md": BASE,
    "report.md": [
        "lowtide train-tokenizer --input notes.txt --vocab-size 500 --out-dir tok/mine",
        f"lowtide prepare --input-files notes.txt --out-dir data/mine {CHAR}",
        f"lowtide prepare --input-files wiki.txt --out-dir data/other {CHAR}",
        "lowtide train --dataset-dir data/mine --model-name mine --config-file 150M "
        "--max-iters 2 --memory 2GiB",
        "lowtide train --dataset-dir data/mine --model-name other --config-file 150M "
        "--max-iters 1 --memory 2GiB",
    ],
}


def blocks_of(page: str) -> list[tuple[str, str]]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(r"^```(\S*)[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def pages_that_run() -> list[str]:
    run = {"sh", "python"}
    return [
        page for page in PAGES if page != "load.md" and run & {kind for kind, _ in blocks_of(page)}
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make the files that the guides name."""
    library = Path(sysconfig.get_paths()["stdlib"])
    texts = {name: (library / f"{name}.py").read_text() for name in ("argparse", "ast", "typing")}
    for name in ("notes.txt", "corpus.txt"):
        (tmp_path / name).write_text(texts["argparse"], encoding="utf-8")
    for name in ("wiki.txt", "books.txt", "books/a.txt", "law/a.txt", "new.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        source = texts["typing"] if name.startswith(("law", "new")) else texts["ast"]
        path.write_text(source.replace("def ", f"def {path.stem}_"), encoding="utf-8")
    (tmp_path / "tasks").mkdir()
    arc = {"question": "Wet?", "choices": {"text": ["sea", "dune"], "label": ["A", "B"]}}
    (tmp_path / "tasks" / "arc.jsonl").write_text(json.dumps({**arc, "answerKey": "A"}))
    (tmp_path / "tasks" / "words.jsonl").write_text(json.dumps({"text": "the tide is low"}))
    (tmp_path / "news").mkdir()
    rows = [json.dumps({"text": text[:20_000]}) for text in texts.values()]
    with gzip.open(tmp_path / "news" / "a.jsonl.gz", "wt") as file:
        file.write("\n".join(rows))
    for name in ("150M", "small_char", "750M_1024_domain_adapt"):
        assert name in config_names(TrainSettings.configs_dir)  # too large for a test
        (tmp_path / name).write_text(json.dumps({"seq_len": 32} if "adapt" in name else TINY))
    return tmp_path


# Examples are of a useful size; a test wants to see that they work.
CUTS = {
    r"--max-(iters|steps) \d+": r"--max-\1 2 --eval-iters 1 --sample-tokens 2",
    r"max_iters=\d+": "max_iters=2, eval_iters=1, sample_tokens=2",
    r"(context_length|seq_len)=\d+": r"\1=8",
    r"max_new_tokens=\d+": "max_new_tokens=3",
    "--what loading checkpointing": "--what checkpointing",  # loading: tests/planning
    "lowtide generate ": "lowtide generate --max-new-tokens 3 ",
    r"lowtide evaluate (?=.*--dataset-dir)": "lowtide evaluate --eval-iters 1 ",
}


def run_block(kind: str, block: str, folder: Path) -> None:
    """Run a block in this process; README.md's are run by a shell, and by Python itself."""
    for found, cut in CUTS.items():
        block = re.sub(found, cut, block)
    if kind == "python":
        exec(compile(block, "a block of Python", "exec"), {"__name__": "__main__"})
        return
    lines = block.replace("\\\n", " ").splitlines()
    for words in filter(None, (shlex.split(line, comments=True) for line in lines)):
        assert words[0] == "lowtide", words
        assert not {"|", ">", "<", "&&", ";", "&"} & set(words), words
        assert cli.main(expand_names(words[1:], folder)) == 0, words


def expand_names(words: list[str], folder: Path) -> list[str]:
    """Put files in the place of a pattern, as a shell does."""
    found: list[str] = []
    for word in words:
        names = sorted(str(path.relative_to(folder)) for path in folder.glob(word)) * ("*" in word)
        found += names or [word]
    return found


@pytest.mark.parametrize("page", pages_that_run())
def test_commands_and_examples_run_in_order(
    page: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    for command in BEFORE.get(page, []):
        run_block("sh", command, folder)
    for kind, block in blocks_of(page):
        if kind in ("sh", "python"):
            run_block(kind, block, folder)


def commands_in(block: str) -> list[list[str]]:
    """Return the words after `lowtide` of each command in a block."""
    lines = block.replace("\\\n", " ").splitlines()
    found: list[list[str]] = []
    for line in lines:
        words = shlex.split(line, comments=True)
        words = [
            inner
            for word in words
            for inner in (shlex.split(word) if "lowtide " in word else [word])
        ]
        if "lowtide" in words:
            found.append(words[words.index("lowtide") + 1 :])
    return found


@pytest.mark.parametrize("page", PAGES)
def test_commands_for_other_machines_are_read_by_the_command_line(
    page: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    seen: list[Any] = []
    for name, verb in list(cli.VERBS.items()):
        monkeypatch.setitem(cli.VERBS, name, dataclasses.replace(verb, run=seen.append))
    for kind, block in blocks_of(page):
        commands = commands_in(block) if kind == "console" else []
        for words in commands:
            before = len(seen)
            assert cli.main(words) == 0, words
            assert len(seen) == before + 1
        assert kind != "console" or commands, block


@pytest.mark.parametrize("page", PAGES)
def test_no_command_stands_in_a_block_that_nobody_runs(page: str) -> None:
    for kind, block in blocks_of(page):
        if kind not in ("sh", "python", "console"):
            assert not re.search(r"^(lowtide|torchrun) ", block, re.MULTILINE), block


@pytest.mark.parametrize("page", ["../CONTRIBUTING.md", *PAGES])
def test_links_lead_somewhere(page: str) -> None:
    path = DOCS / page
    for link in re.findall(r"\]\((?!https?://|#)([^)#]+)", path.read_text(encoding="utf-8")):
        assert (path.parent / link).exists(), link


def test_guides_are_listed_in_the_order_of_the_work() -> None:
    for path, prefix in ((DOCS / "README.md", ""), (ROOT / "README.md", "docs/")):
        text = path.read_text(encoding="utf-8")
        places = [text.find(f"]({prefix}{name})") for name in GUIDES]
        assert -1 not in places, (path, GUIDES[places.index(-1)])
        if not prefix:
            assert places == sorted(places)
    assert set(GUIDES) | {"README.md", "architecture.md", "terminology.md", "testing.md"} == set(
        PAGES
    )


def test_flags_that_are_advised_exist(capsys: pytest.CaptureFixture[str]) -> None:
    """Every flag that a guide names is in the help of a verb, a script, torchrun or SLURM."""
    known = {"--help", "--memory"}
    for script in ("tools/mutants.py", "tests/torture/torture.py", "tests/native/fuzz.py"):
        text = (ROOT / script).read_text(encoding="utf-8")
        known |= set(re.findall(r'add_argument\(\s*"(--[a-z-]+)"', text))
    known |= {"--long", "--recursive", "--exclude"}  # of zstd and of aws
    known |= {"--model"}  # of lm-evaluation-harness
    known |= {"--no-deps"}  # of pip
    known |= {flag_name(name) for row in SAME_SETTINGS for name in row}
    known |= {"--nnodes", "--nproc-per-node", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id"}
    known |= {
        "--standalone",
        "--array",
        "--nodes",
        "--ntasks-per-node",
        "--gres",
        "--time",
        "--cpus-per-task",
        "--mem",
        "--wrap",
    }
    assert cli.main(["completion", "bash"]) == 0  # which has every flag of every verb
    known |= set(re.findall(r"--[a-z][a-z0-9-]+", capsys.readouterr().out))
    for page in PAGES:
        text = (DOCS / page).read_text(encoding="utf-8")
        text = "\n".join(line for line in text.splitlines() if "benchmarks/" not in line)
        # What other programs take is theirs: their blocks, and their column of a table.
        text = re.sub(r"^```text\n.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
        if page == "coming-from.md":
            text = re.sub(r"^\| .*? \|", "", text, flags=re.MULTILINE)
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", text):
            assert flag in known, f"{page}: {flag}"
