"""Config files: three formats, by path or by name, from any folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowtide.configfiles import config_names
from lowtide.errors import DataError, UsageError
from lowtide.settings import build_settings, read_config_file
from lowtide.training.settings import TrainSettings


def read(path: str | Path) -> TrainSettings:
    return build_settings(TrainSettings, {"config_file": path})


@pytest.mark.parametrize(
    "name", ["150M", "150M.json", "configs/150M.json", "1.5B_1024", "750M_1024_domain_adapt",
             "configs/pretrain/750M_1024_domain_adapt.json"],
)  # fmt: skip
def test_a_config_of_the_package_is_found_by_name_from_anywhere(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "150M").mkdir()  # somebody's folder is no config file
    assert read(name).computing.use_mixed_precision


def test_an_existing_path_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "150M.json").write_text('{"seq_len": 7}')
    (tmp_path / "10M").write_text('{"seq_len": 9}')
    assert (read("150M.json").model.seq_len, read("10M").model.seq_len) == (7, 9)
    assert read("150M").model.seq_len == 256  # 150M is another path than 150M.json


@pytest.mark.parametrize("name", ["150m", "configs/nonsense.json"])
def test_an_unknown_name_lists_those_there_are(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="config file not found") as caught:
        read(name)
    names = config_names(TrainSettings.configs_dir)
    assert len(names) > 8
    assert f"built-in are {', '.join(names)}" in str(caught.value.next_step)


def test_a_name_in_another_folder_is_that_folders(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="config file not found"):
        read(tmp_path / "150M.json")


FORMATS = {
    "c.json": '{"name": "x", "learning-rate": 1e-3, "max_iters": "10k", "seq_len": 64}',
    "c.toml": 'name = "x"\nlearning-rate = 1e-3\nmax_iters = "10k"\nseq_len = 64\n',
    "c.yaml": "# a remark\nname: x\nlearning-rate: 1e-3\nmax_iters: 10k\nseq_len: 64\n",
    "c.yml": "name: x\nlr: 1e-3\nmax_iters: 10_000\nblock_size: 64\n",
}


@pytest.mark.parametrize("name", FORMATS)
def test_formats_say_the_same(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(FORMATS[name])
    settings = read(tmp_path / name)
    expected = (1e-3, 10_000, 64)
    assert (
        settings.learning.learning_rate,
        settings.length.max_iters,
        settings.model.seq_len,
    ) == expected


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("c.json", "seq_len = 64", "not JSON"),
        ("c.toml", "seq_len: 64", "not TOML"),
        ("c.yaml", "a: [1", "not YAML"),
        ("c.yaml", "- 1", "holds a list, expected an object"),
        ("c.toml", "\udcff", "not TOML"),
    ],
)
def test_damaged_files_are_named(name: str, text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError, match=message) as caught:
        read_config_file(path)
    assert caught.value.path == path


@pytest.mark.parametrize("value", ["1.5", "ten", "1.5x", ""])
def test_text_that_is_no_count_is_refused(value: str, tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(f'max_iters = "{value}"')
    with pytest.raises(UsageError, match=r"max_iters is .*, expected a whole number"):
        read(path)


@pytest.mark.parametrize(
    ("name", "text", "key"),
    [
        ("a.json", '{"seq_len": 8, "batch_size": 2, "seq_len": 9}', "seq_len"),
        ("a.json", '{"seq_len": 8, "seq-len": 8}', "seq-len"),
        ("a.yaml", "seq_len: 8\nbatch_size: 2\n'seq_len': 9\n", "seq_len"),
        ("a.yml", "seq_len: 8\nseq-len: 8\n", "seq-len"),
    ],
)
def test_a_key_that_is_there_twice_is_refused(
    tmp_path: Path, name: str, text: str, key: str
) -> None:
    """The last one counted, and the other one looked as if it did."""
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=f"{key!r} is in the config file twice") as caught:
        read(tmp_path / name)
    assert caught.value.path == tmp_path / name


def test_yaml_may_override_what_it_merges(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("x: &x {seq_len: 8, lr: 1}\ny:\n  <<: *x\n  seq_len: 9\n")
    assert read_config_file(tmp_path / "a.yaml")["y"] == {"seq_len": 9, "lr": 1}
