"""Where credentials come from: the environment first, a profile's files only where nothing else."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from lowtide.errors import DataError
from lowtide.stores import credentials
from lowtide.stores.urls import StoreURL

NAMES = (
    "AWS_SKIP_SIGNATURE", "AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE",
    *credentials._OTHER_CREDENTIALS,
)  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty home, no variables, and boto3 installed."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(credentials, "has_package", lambda name: name == "boto3")


def test_a_profile_is_asked_for_by_name_or_by_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not credentials.needs_profile()
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text("[default]")
    assert credentials.needs_profile()
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    assert not credentials.needs_profile()
    (tmp_path / "none").write_text("[default]")
    assert credentials.needs_profile()
    monkeypatch.setattr(credentials, "has_package", lambda name: False)
    assert not credentials.needs_profile()  # files that nobody asked for are no error
    monkeypatch.setenv("AWS_PROFILE", "mine")
    assert credentials.needs_profile()


@pytest.mark.parametrize("name", credentials._OTHER_CREDENTIALS)
def test_other_credentials_come_before_a_profile(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "mine")
    monkeypatch.setenv(name, "")
    assert credentials.needs_profile()
    monkeypatch.setenv(name, "x")
    assert not credentials.needs_profile()


@pytest.mark.parametrize(("value", "needs"), [("1", False), ("True", False), ("0", True)])
def test_public_buckets_need_none(value: str, needs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "mine")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", value)
    assert credentials.needs_profile() is needs


def test_a_profile_is_read_by_boto3_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def import_package(name: str, why: str) -> SimpleNamespace:
        asked.append((name, why))
        return SimpleNamespace(Boto3CredentialProvider=lambda: "provider")

    monkeypatch.setattr(credentials, "import_package", import_package)
    root = StoreURL("s3", "bucket", "")
    assert credentials.profile_credentials(root) == "provider"
    assert asked == [("obstore.auth.boto3", "AWS_PROFILE")]
    monkeypatch.setattr(credentials, "has_package", lambda name: False)
    monkeypatch.setenv("AWS_PROFILE", "mine")
    with pytest.raises(DataError, match="the profile mine is read by the package boto3") as refused:
        credentials.profile_credentials(root)
    assert "pip install boto3" in str(refused.value.next_step)


def test_each_kind_of_store_has_its_own_advice() -> None:
    for scheme, word in (("s3", "AWS_PROFILE"), ("s3a", "AWS_REGION"), ("gs", "GOOGLE"),
                         ("az", "AZURE"), ("abfs", "AZURE")):  # fmt: skip
        assert word in credentials.how_to_sign_in(scheme)
