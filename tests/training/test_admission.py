"""A budget that cannot do is refused before torch is there, with one that does."""

import re
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from lowtide import cli, packages
from lowtide.errors import BudgetError
from lowtide.files import write_json
from lowtide.flatsettings import replace_settings
from lowtide.loader import footprint
from lowtide.loader.streaming import StreamingDataLoader
from lowtide.loader.texts import FileTexts
from lowtide.memory import parse_size
from lowtide.model.config import GPTConfig
from lowtide.model.program import MIB, Program
from lowtide.model.sizing import suitable_vocabulary
from lowtide.tokenizer import Tokenizer
from lowtide.training import admission, data, textneeds, texttokens
from lowtide.training.admission import fit_context, refuse_hopeless
from lowtide.training.footprint import planned_bytes
from lowtide.training.settings import train_settings

PROGRAM = Program(300 * MIB, 320 * MIB)
SMALL = {"num_layers": 1, "width": 32, "num_heads": 2, "seq_len": 16, "batch_size": 4}


@pytest.fixture(autouse=True)
def resident(monkeypatch):
    """The process of the tests grows, and what tokenizing takes comes on top of it."""
    monkeypatch.setattr(textneeds, "tree_resident_bytes", lambda: 200 * MIB)


def advice(error):
    return re.search(r"give at least --memory (\w+)", str(error)).group(1)


@pytest.mark.parametrize("more", [{"tokenization": "char"}, {"vocab_size": 20_000}, {}])
def test_the_first_advice_is_for_the_vocabulary_there_is(tmp_path, more):
    text = tmp_path / "text.txt"
    text.write_text("".join(map(chr, range(0x4E00, 0x4E00 + 5000))))
    options = {**SMALL, "width": 256, "input_file": text, "checkpoints_dir": tmp_path, **more}
    with pytest.raises(BudgetError) as first:
        refuse_hopeless(train_settings(memory="1MiB", **options), program=PROGRAM)
    enough = advice(first.value)
    refuse_hopeless(train_settings(memory=enough, **options), program=PROGRAM)
    with pytest.raises(BudgetError) as again:  # what is one row less is refused with the same
        refuse_hopeless(
            train_settings(memory=str(parse_size(PROGRAM.trained_bytes)), **options),
            program=PROGRAM,
        )
    assert advice(again.value) == enough
    more_of_it = Program(310 * MIB, 330 * MIB)  # as a process differs from a probe
    refuse_hopeless(train_settings(memory=enough, **options), program=more_of_it, is_running=True)


@pytest.mark.parametrize("memory", ["1MiB", "500MiB", "2152MiB"])
@pytest.mark.parametrize("tokenization", ["char", "gpt2", None])
def test_the_first_advice_is_for_tokenizing_too(tmp_path, tokenization, memory):
    """A window of 2 GiB, of which a few bytes are filled: only the numbers are large."""
    window = zstandard.ZstdCompressionParameters(window_log=31, strategy=1, hash_log=10)
    text = zstandard.ZstdCompressor(compression_params=window).compressobj()
    path = tmp_path / "text.txt.zst"
    path.write_bytes(text.compress(b"some words, and more of them. " * 500) + text.flush())
    options = {**SMALL, "input_file": path, "checkpoints_dir": tmp_path}
    options["tokenization"] = tokenization
    with pytest.raises(BudgetError) as first:
        refuse_hopeless(train_settings(memory=memory, **options), program=PROGRAM)
    settings = train_settings(memory=advice(first.value), **options)
    refuse_hopeless(settings, program=PROGRAM)
    assert texttokens.find_text_tokens(settings, print, None).is_file()


def test_the_first_advice_is_for_text_without_a_place_to_cut(tmp_path):
    """What is held at once of it is in what the run is refused with, before it is reached."""
    named = []
    for name, text in (("lines", b"ACGT\n" * 1000), ("letters", b"ACGT" * (15 << 18))):
        (tmp_path / f"{name}.txt").write_bytes(text)
        options = {"input_file": tmp_path / f"{name}.txt", "checkpoints_dir": tmp_path}
        settings = train_settings(memory="1MiB", tokenization="gpt2", **SMALL, **options)
        with pytest.raises(BudgetError) as refused:
            refuse_hopeless(settings, program=Program(MIB, MIB))
        named.append(parse_size(advice(refused.value)))
    assert 15 * MIB <= named[1] - named[0] <= 32 * MIB


def test_a_text_in_a_store_is_refused_before_a_budget_is_named(tmp_path, capsys):
    words = ["train", "--input-file", "s3://bucket/a.txt", "--memory", "1MiB"]
    assert cli.main([*words, "--checkpoints-dir", str(tmp_path)]) == 2
    assert "which is not read as one file" in capsys.readouterr().err


def test_a_stored_model_needs_no_vocabulary(tmp_path, monkeypatch):
    config = GPTConfig(512, 16, 1, 32, 2)
    (tmp_path / "m").mkdir()
    write_json(tmp_path / "m" / "config.json", config.to_huggingface())
    monkeypatch.setattr(admission, "_vocabulary", None)
    settings = train_settings(memory="1MiB", model_name="m", checkpoints_dir=tmp_path)
    with pytest.raises(BudgetError, match="even one row at a time"):
        refuse_hopeless(settings, program=PROGRAM)


def test_a_gpu_has_its_own_memory(tmp_path):
    settings = train_settings(memory="1MiB", checkpoints_dir=tmp_path)
    with pytest.raises(BudgetError):
        refuse_hopeless(settings, program=Program(300 * MIB, 320 * MIB))
    refuse_hopeless(settings, program=Program(300 * MIB, 320 * MIB, device="cuda"))


def test_a_run_that_goes_on_keeps_its_tokens_where_flags_are_left_out(tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text("some words, and then some more of them. " * 500)
    shape = ["--num-layers", "1", "--width", "8", "--num-heads", "1", "--seq-len", "16"]
    words = ["train", "--input-file", tmp_path / "text.txt", "--checkpoints-dir", tmp_path]
    words += ["--device", "cpu", "--eval-iters", "1", "--batch-size", "2", "--max-iters"]
    first = [*words, "1", "--tokenization", "char", *shape]
    assert cli.main([str(word) for word in first]) == 0
    monkeypatch.setattr(texttokens, "pretokenize_file", None)  # tokenizing again would be an error
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


@pytest.fixture
def tokenized(monkeypatch):
    """The texts that admission has tokenized: (settings, tokenizer) of each call."""
    calls = []
    monkeypatch.setattr(
        admission, "find_text_tokens", lambda settings, note, known: calls.append((settings, known))
    )
    monkeypatch.setattr(admission, "continued_settings", lambda folder, settings: settings)
    monkeypatch.delenv("RANK", raising=False)
    return calls


@pytest.mark.parametrize(
    ("options", "is_run", "times"),
    [
        ({}, False, 1),
        ({}, True, 1),
        ({"overwrite": True}, False, 0),  # the run is removed first, its tokens too
        ({"resume": False}, False, 1),
        ({"resume": False}, True, 0),  # an error to come
        ({"dataset_dir": "d"}, False, 0),
        ({"train_data_path": "d"}, False, 0),
        ({"dataset_id": "d"}, False, 0),
        ({"init_from_model": "nowhere"}, False, 0),
    ],
)
def test_texts_are_tokenized_ahead_where_that_is_sure_to_be_used(
    tmp_path, tokenized, options, is_run, times
):
    if is_run:
        (tmp_path / "model" / "steps" / "step_00000001").mkdir(parents=True)
    admission.admit(train_settings(input_file="t.txt", checkpoints_dir=tmp_path, **options))
    assert len(tokenized) == times


@pytest.mark.parametrize("tokenization", [None, "gpt2"])
def test_a_stream_of_files_gets_its_tokenizer_ahead_unless_one_is_named(
    tmp_path, tokenized, monkeypatch, tokenization
):
    streamed = []
    monkeypatch.setattr(
        admission, "find_stream_tokenizer", lambda settings, note, known: streamed.append(known)
    )
    text = tmp_path / "t.txt"
    text.write_text("a text\n" * 100)
    admission.admit(
        train_settings(
            dataset_id=str(text),
            use_streaming=True,
            tokenization=tokenization,
            checkpoints_dir=tmp_path,
        )
    )
    assert (streamed, tokenized) == ([] if tokenization else [None], [])


def test_nothing_is_tokenized_ahead_without_a_text_or_by_several(tmp_path, tokenized, monkeypatch):
    admission.admit(train_settings(checkpoints_dir=tmp_path))
    monkeypatch.setenv("RANK", "0")
    admission.admit(train_settings(input_file="t.txt", checkpoints_dir=tmp_path))
    assert tokenized == []


def test_a_run_that_goes_on_takes_its_own_settings(tmp_path, tokenized, monkeypatch):
    (tmp_path / "model" / "steps" / "step_00000001").mkdir(parents=True)
    seen = []

    def continued(folder, settings):
        seen.append(folder)
        return settings

    monkeypatch.setattr(admission, "continued_settings", continued)
    for options in ({}, {"overwrite": True}, {"resume": False}, {"model_name": "other"}):
        admission.admit(
            train_settings(input_file="t.txt", **{"checkpoints_dir": tmp_path, **options})
        )
    assert seen == [tmp_path / "model"]


def store_model(folder, *, context=16):
    folder.mkdir(parents=True)
    write_json(folder / "config.json", GPTConfig(300, context, 1, 32, 2).to_huggingface())


def test_rows_are_shortened_to_the_context_of_the_model_that_goes_on(tmp_path, tokenized):
    store_model(tmp_path / "base")
    Tokenizer.from_characters("abc").save(tmp_path / "base")
    for name in ("base", str(tmp_path / "base")):  # the name of a run, or a folder
        settings = train_settings(
            input_file="t.txt", checkpoints_dir=tmp_path, init_from_model=name
        )
        admission.admit(settings)
        given, tokenizer = tokenized.pop()
        assert given.model.seq_len == 16
        assert tokenizer.kind == "char"
    admission.admit(replace_settings(settings, seq_len=100))
    assert tokenized.pop()[0].model.seq_len == 100
    (tmp_path / "base" / "tokenizer.json").unlink()
    admission.admit(settings)
    assert tokenized.pop()[1] is None
    store_model(tmp_path / "long", context=1000)
    admission.admit(replace_settings(settings, init_from_model="long"))
    assert tokenized.pop()[0].model.seq_len == 256
    (tmp_path / "base" / "config.json").write_text("{}")  # told where it is loaded
    admission.admit(settings)
    assert tokenized.pop()[0].model.seq_len == 256


def test_the_vocabulary_of_new_models(tmp_path):
    text = tmp_path / "t.txt"
    text.write_text("abc" * 100_000)
    folder = tmp_path / "data"
    Tokenizer.from_characters("abcdef").save(folder)
    own = Tokenizer.load(folder).vocab_size

    def vocabulary(**options):
        return admission._vocabulary(train_settings(target_params=10_000_000, **options))

    assert vocabulary(vocab_size=777, dataset_dir=folder) == 777
    assert vocabulary(dataset_dir=folder) == own
    assert vocabulary(dataset_dir=tmp_path, tokenization="char", input_file=text) == 5
    assert vocabulary(input_file=text) == suitable_vocabulary(10**7, 300_000) == 1000
    assert vocabulary(input_file=tmp_path / "none") == suitable_vocabulary(10**7) == 6300
    assert vocabulary(dataset_id="x") == 6300
    assert vocabulary(input_file=tmp_path / "t.npy") == 50257
    assert vocabulary(dataset_id="x", tokenization="gpt2") == 50257
    assert vocabulary(input_file=text, tokenization=str(folder)) == own


def test_the_smallest_shape_is_the_one_asked_for_without_words():
    counted = admission._smallest_shape(train_settings(target_params=10**6, layout="gpt2").model)
    assert counted == GPTConfig(2, 256, 1, 8, 1, layout="gpt2")
    shaped = admission._smallest_shape(train_settings(num_layers=2, width=64, num_heads=2).model)
    assert shaped == GPTConfig(2, 256, 2, 64, 2)


def test_what_overwrites_a_run_does_not_take_its_shape(tmp_path):
    store_model(tmp_path / "model")
    settings = train_settings(checkpoints_dir=tmp_path)
    assert admission.known_shape(settings.run).context_length == 16
    assert admission.known_shape(replace_settings(settings, overwrite=True).run) is None


def test_the_border_of_a_budget_is_exact(tmp_path):
    store_model(tmp_path / "model")
    config = GPTConfig(300, 16, 1, 32, 2)
    settings = train_settings(checkpoints_dir=tmp_path, seq_len=16)
    need = planned_bytes(config, settings, micro_batch=1, program=PROGRAM)
    for least, is_running in (
        (need.budget_bytes, False),
        (need.running_budget_bytes, True),
    ):
        enough = replace_settings(settings, memory=f"{least}B")
        refuse_hopeless(enough, program=PROGRAM, is_running=is_running)
    less = replace_settings(settings, memory=f"{need.budget_bytes - 1}B")
    with pytest.raises(BudgetError):
        refuse_hopeless(less, program=PROGRAM)


def test_what_a_streams_reader_holds_counts(tmp_path):
    text = "some words of a long text\n" * 500_000
    table = pa.table({"text": ["short", text]})
    path = tmp_path / "cell.parquet"
    pq.write_table(table, path, compression="lz4", use_dictionary=False)
    options = {**SMALL, "dataset_id": str(path), "checkpoints_dir": tmp_path, "vocab_size": 300}
    with pytest.raises(BudgetError) as refused:
        refuse_hopeless(train_settings(memory="450MiB", **options), program=PROGRAM)
    enough = advice(refused.value)
    assert parse_size(enough) > PROGRAM.trained_bytes + 3 * len(text)
    refuse_hopeless(train_settings(memory=enough, **options), program=PROGRAM)


def test_a_later_part_is_refused_with_a_budget_that_holds_it(tmp_path, monkeypatch):
    # As of an object in a store, of which only the first header is looked at.
    monkeypatch.setattr("lowtide.corpus.decompression.is_stored", lambda path: True)
    for number, log in enumerate((18, 24)):
        parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=log)
        compressor = zstandard.ZstdCompressor(compression_params=parameters)
        with (tmp_path / "t.txt.zst").open("ab") as file, compressor.stream_writer(file) as out:
            out.write(f"words of frame {number}\n".encode() * 50_000)
    options = {**SMALL, "dataset_id": str(tmp_path / "t.txt.zst"), "checkpoints_dir": tmp_path}
    for memory, is_enough in (("200MiB", False), ("4GiB", True)):
        limits = data._reading_limits(
            train_settings(memory=memory, **options), Tokenizer.from_characters("abc")
        )
        source = FileTexts([options["dataset_id"]], **limits)
        if is_enough:
            assert sum(len(text.data) for text in source.iter_texts(seed=None)) == 2 * 50_000 * 17
            continue
        with pytest.raises(BudgetError, match=r"window of 16\.0 MiB") as refused:
            list(source.iter_texts(seed=None))
        needed = advice(refused.value)
    more = data._reading_limits(
        train_settings(memory=needed, **options), Tokenizer.from_characters("abc")
    )
    assert list(FileTexts([options["dataset_id"]], **more).iter_texts(seed=None))


@pytest.mark.parametrize("val_fraction", [0.0, 0.1])
def test_a_stream_that_is_given_is_counted(tmp_path, make_trainer, val_fraction):
    """What a loader of the caller's holds belongs to the budget as one of the command's does."""
    (tmp_path / "a.txt").write_text("some words\n" * 300)
    loader = StreamingDataLoader(
        files=tmp_path / "a.txt",
        tokenizer=Tokenizer.from_characters("some wrd\n"),
        seq_len=16,
        shuffle_buffer_size=1 << 20,
        val_fraction=val_fraction,
    )
    held = footprint.planned_bytes(seq_len=16, shuffle_buffer_size=1 << 20)
    assert loader.memory_bytes >= held > 300 * MIB
    trainer = make_trainer(memory="600MiB")
    trainer.data = loader
    with pytest.raises(BudgetError, match="even one row at a time") as caught:
        trainer.fit()
    assert parse_size(advice(str(caught.value))) > held + 200 * MIB
    stored = StreamingDataLoader(
        files=tmp_path / "a.txt", tokenizer=Tokenizer.from_characters("some wrd\n"), streaming=False
    )
    assert stored.memory_bytes == 0


def test_a_stream_whose_tokenizer_is_learned_needs_what_its_file_does(tmp_path):
    """Of a sample, or with a tokenizer that is there, nothing is learned from all of the text."""
    path = tmp_path / "t.txt"
    path.write_text("some words, and then some more of them. " * 500)

    def needed(**more):
        return textneeds.text_budget_bytes(
            train_settings(checkpoints_dir=tmp_path, **SMALL, **more)
        )

    learned = needed(dataset_id=str(path), vocab_size=300)
    assert 200 * MIB < learned <= needed(input_file=path, vocab_size=300)  # which it encodes, too
    assert (
        textneeds.least_text_bytes(
            train_settings(checkpoints_dir=tmp_path, dataset_id=str(path), vocab_size=300, **SMALL)
        )
        > 200 * MIB
    )
    assert needed(dataset_id=str(path)) == 0
    assert needed(dataset_id="some/name", vocab_size=300) == 0
    assert needed(dataset_id=str(tmp_path / "none.txt"), vocab_size=300) == 0
    (tmp_path / "model" / "data" / "tokenizer").mkdir(parents=True)
    (tmp_path / "model" / "data" / "tokenizer" / "tokenizer.json").write_text("{}")
    assert needed(dataset_id=str(path), vocab_size=300) == 0
    assert needed(dataset_id=str(path), vocab_size=300, overwrite=True) == learned


@pytest.mark.parametrize("there", [{"jax"}, set()])
def test_without_torch_the_backend_that_is_installed_is_named(monkeypatch, there):
    for module in (admission, packages):
        monkeypatch.setattr(module, "has_package", {*there, "safetensors"}.__contains__)
    with pytest.raises(
        packages.MissingPackageError, match="training needs the package torch"
    ) as no:
        admission._require_packages(train_settings())
    assert ("--backend jax" in no.value.next_step) == bool(there)
    assert 'pip install "lowtide[torch]"' in no.value.next_step


def test_rows_fitted_to_a_context_leave_what_was_given_as_it_was():
    """What a preset gives counted as given by flags, and stopped the run it was not for."""
    given = train_settings(config_file="10M", epochs=2.0)
    fitted = fit_context(given, GPTConfig(512, context_length=64))
    assert fitted.model.seq_len == 64
    assert (fitted.left_out, fitted.supplied) == (given.left_out, given.supplied)
    assert "target_params" in fitted.supplied
