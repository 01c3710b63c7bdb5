from __future__ import annotations

import os
from typing import Any

import pytest

from lowtide import packages
from lowtide.errors import DataError, UsageError
from lowtide.stores import credentials, objects
from lowtide.stores.objects import Store
from lowtide.stores.refusals import ObjectChangedError, ObjectMissingError
from lowtide.stores.urls import StoreURL

ROOT = StoreURL("s3", "bucket", "")
URL = ROOT / "a.bin"


@pytest.fixture
def store(server: Any) -> Store:
    server.objects["a.bin"] = bytes(range(256)) * 40
    return Store(ROOT)


def test_ranges_are_what_the_object_holds(store: Store, server: Any) -> None:
    info = store.head(URL)
    assert info.size == 10240
    assert bytes(store.read(info, 250, 20)) == server.objects["a.bin"][250:270]
    assert bytes(store.read(info, 10239, 1)) == b"\xff"
    assert bytes(store.read(info, 0, 0)) == b""


@pytest.mark.parametrize("fault", ["drop", "cut", "503", "500", "429"])
def test_what_passes_is_asked_again_with_growing_waits(
    store: Store, server: Any, waits: list[float], fault: str
) -> None:
    info = store.head(URL)
    server.faults.extend([fault] * 4)
    assert bytes(store.read(info, 100, 1000)) == server.objects["a.bin"][100:1100]
    assert len(waits) == 4
    assert waits[3] > 2 * waits[0]


def test_a_store_that_does_not_come_back_is_named_with_what_to_do(
    store: Store, server: Any, waits: list[float], capfd: pytest.CaptureFixture[str]
) -> None:
    info = store.head(URL)
    server.faults.extend(["drop"] * 50)
    with pytest.raises(DataError, match="no answer from the store in 10 attempts") as lost:
        store.read(info, 0, 10)
    assert "file: s3://bucket/a.bin" in str(lost.value)
    assert "give the same command again" in str(lost.value)
    assert 30 < sum(waits) < 120
    assert "attempt 6 of 10" in capfd.readouterr().err
    server.faults.clear()


@pytest.mark.parametrize("with_etags", [True, False])
def test_an_object_that_changed_is_noticed(
    store: Store, server: Any, with_etags: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = store.head(URL)
    server.objects["a.bin"] = server.objects["a.bin"][::-1]
    if not with_etags:  # a store that does not know If-Match
        info = objects.ObjectInfo(info.url, info.size, info.tag, has_etag=False)
    with pytest.raises(ObjectChangedError, match="changed while it was read"):
        store.read(info, 0, 10)
    server.objects["a.bin"] = b"short"
    with pytest.raises(ObjectChangedError):
        store.read(info, 100, 10)


@pytest.mark.parametrize(
    ("status", "message"),
    [("403", "denies access .HTTP 403 Told."), ("301", "set AWS_REGION"), ("400", "HTTP 400")],
)
def test_what_does_not_pass_is_told_at_once(
    store: Store, server: Any, waits: list[float], status: str, message: str
) -> None:
    info = store.head(URL)
    server.faults.append(status)
    with pytest.raises(DataError, match=message) as refused:
        store.read(info, 0, 10)
    assert waits == []
    assert "s3://bucket/a.bin" in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_missing_object_and_a_missing_bucket_are_told_apart(store: Store) -> None:
    with pytest.raises(ObjectMissingError, match="no such object"):
        store.head(ROOT / "b.bin")
    elsewhere = StoreURL("s3", "nobucket", "")
    with pytest.raises(DataError, match="there is no bucket nobucket"):
        list(Store(elsewhere).iter_objects(elsewhere / "x"))


@pytest.mark.parametrize("name", ["a//b.txt", "a/./b.txt", "a/../b.txt", "a\tb.txt"])
def test_a_name_that_cannot_be_read_is_told_at_once(
    store: Store, server: Any, waits: list[float], name: str
) -> None:
    server.objects[f"texts/{name}"] = b"text"
    with pytest.raises(DataError, match="a name that cannot be read") as caught:
        list(store.iter_objects(ROOT / "texts"))
    assert repr(f"texts/{name}") in caught.value.message
    with pytest.raises(DataError, match="a name that cannot be read"):
        store.head(StoreURL("s3", "bucket", f"texts/{name}"))
    assert not waits


def test_a_folder_that_a_console_created_is_no_object(store: Store, server: Any) -> None:
    server.objects |= {"texts/": b"", "texts/more/": b"", "texts/more/b.txt": b"b"}
    names = [info.url.key for info in store.iter_objects(ROOT / "texts")]
    assert names == ["texts/more", "texts/more/b.txt"]
    assert [info.url.key for info in store.iter_objects(ROOT / "texts/more")] == names[1:]
    assert store.list_names(ROOT / "texts") == ["more"]
    assert store.list_names(ROOT / "texts/more") == ["b.txt"]
    server.objects["texts"] = b"an object of that name"
    assert store.list_names(ROOT / "texts") == ["more"]


def test_lists_come_in_pages_and_go_on_after_a_lost_one(
    store: Store, server: Any, waits: list[float]
) -> None:
    server.objects.update({f"p/{number:03}": b"x" * number for number in range(25)})
    server.objects["pq/other"] = b""
    server.page = 10
    found = [(info.url.key, info.size) for info in store.iter_objects(ROOT / "p")]
    assert found == [(f"p/{number:03}", number) for number in range(25)]


def test_no_credentials_are_named(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    error = Exception("Generic S3 error: Error performing PUT http://169.254.169.254/latest/api")

    def refuse(*_: object) -> None:
        raise error

    store = Store(ROOT)
    monkeypatch.setattr(store._obstore, "head", refuse)
    with pytest.raises(DataError, match=r"no credentials[\s\S]*AWS_ACCESS_KEY_ID"):
        store.head(URL)


def test_a_forked_process_is_refused_instead_of_waiting_for_ever(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "_open", {(os.getpid() + 1, "s3://bucket"): store})
    with pytest.raises(UsageError, match=r"forked[\s\S]*spawn"):
        objects.open_store(URL)


def test_a_profile_needs_boto3(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_PROFILE", "work")
    monkeypatch.setattr(credentials, "has_package", lambda name: False)
    with pytest.raises(DataError, match=r"profile work is read by the package boto3"):
        Store(ROOT)


def test_a_missing_package_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "has_package", lambda name: False)
    with pytest.raises(packages.MissingPackageError, match=r'pip install "lowtide\[s3\]"'):
        Store(ROOT)


def test_what_is_not_there_is_no_error_when_it_is_removed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 says nothing of it, Azure and GCS do, and may have stopped there."""
    there = {"a", "c", "d"}

    def delete(client: Any, keys: list[str]) -> None:
        for key in keys:
            if key not in there:
                raise FileNotFoundError(key)
            there.remove(key)

    monkeypatch.setattr(store._obstore, "delete", delete)
    store.delete([ROOT / name for name in "abcd"])
    assert there == set()
    store.delete([ROOT / "b"])


@pytest.mark.parametrize(
    ("scheme", "name"), [("s3", "AWS"), ("gs", "GOOGLE"), ("az", "AZURE"), ("abfss", "AZURE")]
)
def test_plain_http_is_allowed_by_the_clouds_own_variable(
    scheme: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cloud in ("AWS", "GOOGLE", "AZURE"):
        monkeypatch.delenv(f"{cloud}_ALLOW_HTTP", raising=False)
    root = StoreURL(scheme, "bucket", "")
    assert not objects._allows_http(root)
    monkeypatch.setenv(f"{name}_ALLOW_HTTP", "True")
    assert objects._allows_http(root)
    assert not objects._allows_http(StoreURL("gs" if name != "GOOGLE" else "s3", "bucket", ""))


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_objects_are_created_and_replaced_under_conditions(
    gcs: Any, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """GCS compares generations where others compare ETags."""

    def expect_and_change(*given: Any) -> Any:
        mode = expect(*given)
        gcs.objects["lease"] = b"between"
        return mode

    url = StoreURL(scheme, "bucket", "lease")
    store = Store(StoreURL(scheme, "bucket", ""))
    first = store.create(url, b"mine")
    assert first is not None and store.create(url, b"yours") is None
    second = store.replace(url, b"renewed", first)
    assert second is not None and gcs.objects["lease"] == b"renewed"
    assert store.replace(url, b"of the dead", first) is None
    expect = Store._expect
    with monkeypatch.context() as patch:
        patch.setattr(Store, "_expect", expect_and_change)
        assert store.replace(url, b"too late", second) is None
    assert gcs.objects["lease"] == b"between"
    store.delete([url])
    assert store.replace(url, b"gone", first) is None and not gcs.objects


def test_an_object_is_exchanged_only_under_its_tag(store: Store, server: Any) -> None:
    first = store.head(URL).tag
    second = store.exchange(URL, b"second", first)
    assert second == store.head(URL).tag != first
    assert store.exchange(URL, b"third", first) is None
    assert server.objects["a.bin"] == b"second"
    assert store.exchange(URL, b"second", first) == second  # ours: an answer that was lost
    assert store.exchange(ROOT / "nothing", b"x", first) is None
    assert "nothing" not in server.objects


def test_a_lost_answer_to_an_exchange_is_looked_for(
    store: Store, server: Any, waits: list[float]
) -> None:
    tag = store.head(URL).tag
    server.faults.append("lose")
    data = bytes(range(256)) * 41_000  # compared in three ranges
    assert store.exchange(URL, data, tag) == server.etag("a.bin") and len(waits) == 1
    tag = store.head(URL).tag
    server.faults.append("lose")
    server.before = lambda key: server.objects.update({"a.bin": data[:-1] + b"?"})
    assert store.exchange(URL, data[::-1], tag) is None  # and then somebody else came


def test_an_exchange_that_collided_with_another_is_tried_again(
    store: Store, server: Any, waits: list[float]
) -> None:
    """S3 may refuse both of two that come at one moment."""
    tag = store.head(URL).tag
    server.faults.extend(["412", "", "412"])
    assert store.exchange(URL, b"mine", tag) is not None
    assert (server.objects["a.bin"], len(waits)) == (b"mine", 2)
    tag = store.head(URL).tag
    server.faults.extend(["412", ""] * 10)
    with pytest.raises(DataError, match="could not be replaced"):
        store.exchange(URL, b"yours", tag)


def test_a_copy_stays_in_the_store(store: Store, server: Any, waits: list[float]) -> None:
    server.objects["b.bin"] = b"old"
    server.requests.clear()
    server.faults.append("503")
    store.copy(URL, ROOT / "b.bin")
    assert server.objects["b.bin"] == server.objects["a.bin"]
    assert server.requests == ["COPY bucket/b.bin"] * 2
    with pytest.raises(ObjectMissingError):
        store.copy(ROOT / "nothing", URL)
