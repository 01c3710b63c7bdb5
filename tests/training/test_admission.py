"""A budget that cannot do is refused before torch is there, with one that does."""

import re
import subprocess
import sys

import pytest

from lowtide import cli
from lowtide.errors import BudgetError
from lowtide.memory import parse_size
from lowtide.model.program import MIB, Program
from lowtide.tokenizer import Tokenizer
from lowtide.training import admission, texts
from lowtide.training.admission import refuse_hopeless
from lowtide.training.settings import TrainSettings

PROGRAM = Program(300 * MIB, 320 * MIB)
SMALL = {"num_layers": 1, "width": 32, "num_heads": 2, "seq_len": 16, "batch_size": 4}


def advice(error):
    return re.search(r"give at least --memory (\w+)", str(error)).group(1)


@pytest.mark.parametrize("more", [{"tokenization": "char"}, {"vocab_size": 20_000}, {}])
def test_the_first_advice_is_for_the_vocabulary_there_is(tmp_path, more):
    text = tmp_path / "text.txt"
    text.write_text("".join(map(chr, range(0x4E00, 0x4E00 + 5000))))
    options = {**SMALL, "width": 256, "input_file": text, "checkpoints_dir": tmp_path, **more}
    with pytest.raises(BudgetError) as first:
        refuse_hopeless(TrainSettings(memory="1MiB", **options), program=PROGRAM)
    enough = advice(first.value)
    refuse_hopeless(TrainSettings(memory=enough, **options), program=PROGRAM)
    with pytest.raises(BudgetError) as again:  # what is one row less is refused with the same
        refuse_hopeless(
            TrainSettings(memory=str(parse_size(PROGRAM.trained_bytes)), **options), program=PROGRAM
        )
    assert advice(again.value) == enough
    more_of_it = Program(310 * MIB, 330 * MIB)  # as a process differs from a probe
    refuse_hopeless(TrainSettings(memory=enough, **options), program=more_of_it, is_running=True)


def test_a_stored_model_needs_no_vocabulary(tmp_path, monkeypatch):
    from lowtide.files import write_json
    from lowtide.model.config import GPTConfig

    config = GPTConfig(512, 16, 1, 32, 2)
    (tmp_path / "m").mkdir()
    write_json(tmp_path / "m" / "config.json", config.to_huggingface())
    monkeypatch.setattr(admission, "_vocabulary", None)
    settings = TrainSettings(memory="1MiB", model_name="m", checkpoints_dir=tmp_path)
    with pytest.raises(BudgetError, match="even one row at a time"):
        refuse_hopeless(settings, program=PROGRAM)


def test_a_gpu_has_its_own_memory(tmp_path):
    program = Program(300 * MIB, 320 * MIB, device="cuda")
    refuse_hopeless(TrainSettings(memory="1MiB", checkpoints_dir=tmp_path), program=program)


def test_a_run_that_goes_on_keeps_its_tokens_where_flags_are_left_out(tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text("some words, and then some more of them. " * 500)
    shape = ["--num-layers", "1", "--width", "8", "--num-heads", "1", "--seq-len", "16"]
    words = ["train", "--input-file", tmp_path / "text.txt", "--checkpoints-dir", tmp_path]
    words += ["--device", "cpu", "--eval-iters", "1", "--batch-size", "2", "--max-iters"]
    first = [*words, "1", "--tokenization", "char", *shape]
    assert cli.main([str(word) for word in first]) == 0
    monkeypatch.setattr(texts, "pretokenize_file", None)  # tokenizing again would be an error
    assert cli.main([str(word) for word in [*words, "2"]]) == 0
    before = (tmp_path / "model/data/tokens.npy").read_bytes()
    assert cli.main([str(word) for word in [*words, "3", "--tokenization", "gpt2"]]) == 2
    assert (tmp_path / "model/data/tokens.npy").read_bytes() == before


def lowtide(*words, cwd):
    code = (
        "import sys; from lowtide import cli; code = cli.main(sys.argv[1:], whole_process=True)\n"
        "print('torch' in sys.modules); sys.exit(code)"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


def test_what_was_advised_trains_and_keeps_it(tmp_path):
    (tmp_path / "text.txt").write_text("some words, and then some more of them. " * 500)
    words = [
        "train",
        "--input-file",
        "text.txt",
        "--tokenization",
        "char",
        "--device",
        "cpu",
        "--max-iters",
        "2",
    ]
    words += [
        "--target-params",
        "50000",
        "--seq-len",
        "128",
        "--batch-size",
        "64",
        "--eval-iters",
        "2",
    ]
    refused = lowtide(*words, "--memory", "64MiB", cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (1, "False\n")
    assert not (tmp_path / "checkpoints").exists()
    done = lowtide(*words, "--memory", advice(refused.stderr), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "finished at step 2" in done.stdout
    assert "a step still sees 64 rows" in done.stderr  # in micro-batches of fewer
    # The text is tokenized before torch is there, once.
    assert done.stderr.index("tokenized text.txt") < done.stderr.index("model: ")
    assert Tokenizer.load(tmp_path / "checkpoints/model/data").kind == "char"
