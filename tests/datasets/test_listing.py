"""What a dataset's target means, which files of a folder are its files, and how two listings differ."""

from __future__ import annotations

import asyncio
import gc
import glob
import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import deltalake
import fsspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from typer.testing import CliRunner

import asyncpq
import asyncpq.polars
from asyncpq.cli.commands import app
from asyncpq.datasets.listing import (
    HIDDEN,
    FileRules,
    Listing,
    Target,
    find_table,
    folders_around,
    is_file_of,
    list_files,
    parse_target,
)
from asyncpq.datasets.model import DataFile, DataFiles
from asyncpq.datasets.partitioning import parse_partitioning
from asyncpq.errors import InvalidOptionError, ObjectNotFoundError, UnsupportedStoreError
from asyncpq.indexing import Bounds
from asyncpq.metrics import ReadMetrics
from asyncpq.storage.base import ListedObject, ListedObjects, ObjectRow, RequestContext, Validator
from asyncpq.storage.s3 import direct
from asyncpq.storage.s3.key_listing import ListedKey
from asyncpq.storage.s3.store import S3Store
from asyncpq.testing import Fault, ObjectServer
from tests.ducklake_lakes import Lake
from tests.iceberg_tables import make_table
from tests.parquet_bytes import parquet_bytes
from tests.store_backends import obstore_options, open_test_store


class Names:
    """A store of names alone."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.listed: list[str] = []

    async def list_objects(self, url: str, **_: Any) -> list[ListedObject]:
        self.listed.append(url)
        return [ListedObject(name, 1, Validator(1, '"e"')) for name in sorted(self.names) if name.startswith(url)]

    async def open_object(self, url: str) -> Any:
        raise ObjectNotFoundError("no such object", url=url)


def runtime_of(store: object) -> Any:
    """Return a runtime whose only store is ``store``."""

    async def store_of(url: str) -> tuple[object, str]:
        return store, ""

    return SimpleNamespace(store=store_of, plain_folders={})


async def committing(folder: str) -> bool:
    """Indexes say which files count."""
    return True


def files_of(target: Any, names: Sequence[str], **options: Any) -> list[str]:
    return [file.url for file in listing_of(target, names, **options).files]


def listing_of(target: Any, names: Sequence[str], *, allow_empty: bool = False, **rules: Any) -> Listing:
    context, chosen = RequestContext(ReadMetrics(), purpose="list"), FileRules(committing, **rules)
    lake, parsed = runtime_of(Names(names)), parse_target(target)
    return asyncio.run(list_files(lake, parsed, context, chosen, allow_empty=allow_empty))


@pytest.mark.parametrize(
    ("url", "folder", "prefix"),
    [
        ("s3://b/t/", "s3://b/t/", "s3://b/t/"),
        ("s3://b/t", "s3://b/t/", "s3://b/t/"),
        ("s3://b", "s3://b/", "s3://b/"),
        ("s3://b/", "s3://b/", "s3://b/"),
        ("data", "data/", "data/"),
        ("/data/t", "/data/t/", "/data/t/"),
        ("file:///data/t", "file:///data/t/", "file:///data/t/"),
        ("memory://t//x", "memory://t//x/", "memory://t//x/"),
        (Path("/data/t"), "/data/t/", "/data/t/"),
        ("s3://b/t/*.parquet", "s3://b/t/", "s3://b/t/"),
        ("s3://b/t/part-0*", "s3://b/t/", "s3://b/t/part-0"),
        ("s3://b/*/x", "s3://b/", "s3://b/"),
        ("s3://b/a/y=20[12]?/**/x", "s3://b/a/", "s3://b/a/y=20"),
        ("*.parquet", "", ""),
        ("file://*.parquet", "file://", "file://"),
    ],
)
def test_targets(url: Any, folder: str, prefix: str) -> None:
    target = parse_target(url)
    assert (target.folder, target.prefixes, target.urls) == (folder, (prefix,), None)


@pytest.mark.parametrize(
    ("target", "prefixes", "names"),
    [
        ("s3://b/t/k={1,2}/", ["k=1/", "k=2/"], ["k=1/a", "k=1/c/b", "k=2/a"]),
        ("s3://b/t/k={1,2}/a", ["k=1/a", "k=2/a"], ["k=1/a", "k=2/a"]),
        ("s3://b/t/k=*/{a,c/b}", ["k="], ["k=1/a", "k=1/c/b", "k=2/a", "k=3/a"]),
        ("s3://b/t/{k={1,2},x}/", ["k=1/", "k=2/", "x/"], ["k=1/a", "k=1/c/b", "k=2/a", "x/1"]),
        ("s3://b/t/x{,,}/", ["x/"], ["x/1"]),
        (["s3://b/t/k=1/", "s3://b/t/x/", "s3://b/t/k=1/"], ["k=1/", "x/"], ["k=1/a", "k=1/c/b", "x/1"]),
        (["s3://b/t/k=[23]/", "s3://b/t/x/1"], ["k=", "x/1"], ["k=2/a", "k=3/a", "x/1"]),
        (["s3://b/t/k={1,3}/", "s3://b/t/k=1/c/"], ["k=1/", "k=3/"], ["k=1/a", "k=1/c/b", "k=3/a"]),
        (
            ["s3://b/t/x/", "s3://b/t/"],
            [""],
            ["k=1/a", "k=1/c/b", "k=2/a", "k=3/a", "x/1", "x1/1", "y,{z}/*", "y,{z}/1"],
        ),
        (["s3://b/t/x/"], ["x/"], ["x/1"]),
        (["s3://b/t/y,{z}/", "s3://b/t/x/"], ["x/", "y"], ["x/1", "y,{z}/*", "y,{z}/1"]),
        (["s3://b/t/y,{z}/*", "s3://b/t/x/"], ["x/", "y"], ["x/1", "y,{z}/*"]),
    ],
)
def test_alternatives(target: Any, prefixes: list[str], names: list[str]) -> None:
    """Each is listed by itself, and no file counts twice."""
    there = ["k=1/a", "k=1/_b", "k=1/c/b", "k=2/a", "k=3/a", "x/1", "x/.2", "x1/1", "y,{z}/*", "y,{z}/1"]
    parsed, store = parse_target(target), Names([f"s3://b/t/{name}" for name in there])
    assert parsed.prefixes == tuple([f"s3://b/t/{prefix}" for prefix in prefixes])
    lake = runtime_of(store)
    listing = asyncio.run(list_files(lake, parsed, RequestContext(ReadMetrics()), FileRules(committing)))
    assert [file.url for file in listing.files] == [f"s3://b/t/{name}" for name in names]
    assert sorted(store.listed) == list(parsed.prefixes)
    again = asyncio.run(list_files(lake, parsed, RequestContext(ReadMetrics()), FileRules(committing), earlier=listing))
    assert (again is listing) is (len(prefixes) > 1)  # as for one listing that a store has kept


@given(st.lists(st.text("ab,{}[!/*", max_size=6), min_size=1, max_size=3), st.data())
def test_items_of_a_list_mean_what_they_mean_alone(folders: list[str], data: st.DataObject) -> None:
    urls = [f"s3://b/{folder}/" for folder in folders]
    names = st.text("ab,{}[!/*", max_size=8) | st.sampled_from([f"{folder}/a" for folder in folders])
    url = f"s3://b/{data.draw(names)}x"
    assert _lists(parse_target(urls), url) is any(_lists(parse_target(one), url) for one in urls)


def _lists(target: Target, url: str) -> bool:
    return url.startswith(target.prefixes) and is_file_of(target, url)


def test_given_urls_are_not_listed() -> None:
    store: Any = Names([])
    for given_urls in (["s3://b/x[1]", "s3://b/_y", "s3://b/x[1]"], "https://h/x?a=b*", ("s3://b/x",)):
        target = parse_target(given_urls)
        found = asyncio.run(list_files(runtime_of(store), target, RequestContext(ReadMetrics()), FileRules(committing)))
        urls = [given_urls] if isinstance(given_urls, str) else list(given_urls)
        assert [file.url for file in found.files] == urls
        assert {(file.validator, file.size) for file in found.files} == {(None, None)}
    assert store.listed == []


@pytest.mark.parametrize(
    "target",
    [
        [],
        ["s3://b/t/", "s3://c/t/"],
        ["http://h/t/"],
        f"s3://b/{'{a,b}' * 10}",
        [7],
        7,
        None,
        "",
        b"s3://b/t",
        [""],
        "s3://*/t",
        {"a": 1},
    ],
)
def test_targets_that_cannot_be(target: Any) -> None:
    with pytest.raises(InvalidOptionError):
        parse_target(target)


def test_which_names_are_files() -> None:
    names = ["a", "b/c.parquet", "d/_SUCCESS", "_meta/x", ".hidden", "d/.x.crc", "e.crc", "k=1/_k=2/x", "z//y", "k=1/f"]
    expected = ["a", "b/c.parquet", "e.crc", "k=1/f", "z//y"]
    urls = [f"s3://b/_t/{name}" for name in names]
    assert files_of("s3://b/_t", urls) == [f"s3://b/_t/{name}" for name in expected]


def test_the_same_files_as_pyarrow(tmp_path: Path) -> None:
    for name in ("a", "b/c.parquet", "d/_S", "_m/x", ".h", "d/.x.crc", "e.crc", "k=1/_k=2/x", "k=1/f", "k=\u00e9/f"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "linked").symlink_to(tmp_path / "b")
    (tmp_path / "link").symlink_to(tmp_path / "a")

    async def listed() -> list[str]:
        store = open_test_store("file", {})
        try:
            return [
                file.url
                for file in (
                    await list_files(runtime_of(store), parse_target(tmp_path), new_context(), FileRules(committing))
                ).files
            ]
        finally:
            await store.close()

    factory = ds.FileSystemDatasetFactory(
        pa.fs.LocalFileSystem(), pa.fs.FileSelector(str(tmp_path), recursive=True), ds.ParquetFileFormat()
    )
    expected = [fragment.path for fragment in factory.finish(pa.schema([])).get_fragments()]
    assert asyncio.run(listed()) == sorted(expected, key=os.fsencode)


def new_context() -> RequestContext:
    return RequestContext(ReadMetrics(), purpose="list")


def test_nothing_there() -> None:
    for target, names, words in (
        ("s3://b/t", [], "nothing is at the dataset's url; s3://b/t"),
        ("s3://b", [], "nothing is at the dataset's url; s3://b"),  # an empty bucket
        ("s3://b/t/", ["s3://b/t2"], "nothing is at the dataset's url; s3://b/t/"),
        ("s3://b/t", ["s3://b/t/_x"], "only hidden files"),
        ("s3://b/*.x", ["s3://b/y"], "no file matches the pattern"),
    ):
        with pytest.raises(ObjectNotFoundError) as caught:
            listing_of(target, names)
        assert words in str(caught.value)
        assert listing_of(target, names, allow_empty=True).files == ()


@pytest.mark.parametrize(
    ("target", "literal"),
    [
        ("s3://b/d[1]/", "s3://b/d[[]1]/"),
        ("s3://b/d{1,2}/*", "s3://b/d[{]1,2}/*"),
        ("s3://b/{a}[x-z]", "s3://b/[{]a}[[]x-z]"),
        (["s3://b/d[1]/"], "s3://b/d[[]1]/"),
        ("s3://b/*", None),
        (["s3://b/d/", "s3://b/e/"], None),
    ],
)
def test_brackets_and_braces_in_names(target: str | list[str], literal: str | None) -> None:
    with pytest.raises(ObjectNotFoundError) as caught:
        listing_of(target, [])
    assert ("write [[] or [{] for it" in str(caught.value)) is (literal is not None)
    if literal is not None:
        assert str(caught.value).endswith(f"for it: {literal}")
        name = literal.replace("[[]", "[").replace("[{]", "{").replace("*", "") + "a.parquet" * literal.endswith(
            ("/", "*")
        )
        assert [file.url for file in listing_of(literal, [name]).files] == [name]


def test_one_file_named_as_a_prefix(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"0123456789")

    async def listed(url: str) -> Listing:
        store = open_test_store("file", {})
        try:
            return await list_files(runtime_of(store), parse_target(url), new_context(), FileRules(committing))
        finally:
            await store.close()

    found = asyncio.run(listed(f"{tmp_path}/x"))
    (file,) = found.files
    assert (file.url, file.size) == (f"{tmp_path}/x", 10)
    assert file.validator is not None  # so that a read notices another one
    with pytest.raises(ObjectNotFoundError):
        asyncio.run(listed(f"{tmp_path}/x/"))
    with pytest.raises(ObjectNotFoundError):
        asyncio.run(listed(f"{tmp_path}/y"))


def test_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t" / "k=1").mkdir(parents=True)
    (tmp_path / "t" / "k=1" / "x").write_bytes(b"x")

    async def listed(url: str) -> list[tuple[str, Any]]:
        store = open_test_store("file", {})
        try:
            hive = parse_partitioning("hive")
            found = await list_files(runtime_of(store), parse_target(url), new_context(), FileRules(committing, hive))
            return [(file.url, dict(file.partition)) for file in found.files]
        finally:
            await store.close()

    for url in ("t", "t/", "t/*/x", "*/k=1/x", "./t/**"):
        begin = "./" if url.startswith("./") else ""
        assert asyncio.run(listed(url)) == [(f"{begin}t/k=1/x", {"k": 1})], url


def test_partitions_of_prefixes_patterns_and_lists() -> None:
    url = "s3://b/q=9/k=1/f"
    hive = parse_partitioning("hive")
    for target, expected in (
        ("s3://b/q=9/", {"k": 1}),
        ("s3://b/q=9/*/f", {"q": 9, "k": 1}),
        ([url], {"q": 9, "k": 1}),  # as pyarrow
    ):
        found = listing_of(target, [url], partitioning=hive)
        assert [dict(file.partition) for file in found.files] == [expected]
        assert found.partitions.names == list(expected)
    for target in ("s3://b/q=9/*/f", [url]):
        with pytest.raises(InvalidOptionError, match="needs a prefix"):
            listing_of(target, [url], partitioning=parse_partitioning(["a"]))


def test_how_java_writes_local_files() -> None:
    with pytest.raises(InvalidOptionError) as caught:
        parse_target("file:/data/lake")
    assert caught.value.hint == "Write file:///data/lake."
    assert parse_target("file:///data/lake").folder == "file:///data/lake/"


def test_bad_partitions_are_told_apart() -> None:
    found = listing_of("s3://b/t", ["s3://b/t/k=1/f", "s3://b/t/k=%FF/f"], partitioning=parse_partitioning("hive"))
    assert [file.url for file in found.files] == ["s3://b/t/k=1/f"]
    assert [error.url for error in found.errors] == ["s3://b/t/k=%FF/f"]


def test_listings_are_equal_if_their_files_are() -> None:
    def listing(*etags: str, size: int = 1, values: Mapping[str, Any] = MappingProxyType({})) -> Listing:
        rows: list[ObjectRow] = [(f"b/{etag}", size, float(size), True, etag, None, None) for etag in etags]
        return Listing(DataFiles(rows, {"b/": values}))

    two = listing("1", "2")
    assert two == listing("1", "2")
    assert two == replace(two, has_index=True)
    assert two != listing("1", "2", values={"x": 1})
    assert two != listing("1", "3")
    assert two != listing("1", "2", size=2)
    assert two != listing("1")
    assert two.files == [DataFile(url=f"b/{etag}", validator=Validator(1, etag), size=1) for etag in ("1", "2")]


async def test_a_listed_file_is_no_object() -> None:
    """The garbage collector looks at each object again and again; it leaves out plain tuples that it has seen."""
    kinds = (ListedObject, ListedKey, Validator, DataFile)
    async with ObjectServer() as server:
        server.page_keys = 20
        for number in range(2500):
            server.put(f"bucket/lake/day={number % 3}/{number:05}", b"x")
        async with asyncpq.Session(server.storage_options) as session:
            found = await list_files(
                session._runtime,
                parse_target("s3://bucket/lake/"),
                RequestContext(ReadMetrics(), purpose="list"),
                FileRules(committing, parse_partitioning("hive")),
            )
            gc.collect()
            # those of some pages are kept
            assert sum(type(known) in kinds for known in gc.get_objects()) <= direct._KNOWN_PAGES * server.page_keys
            assert isinstance(found.listed, ListedObjects)
            rows = {id(row) for row in (*found.files.rows, *found.listed.rows)}
            assert not rows & {id(known) for known in gc.get_objects()}
            assert len(found.files) == 2500
            assert found.files[7].partition == {"day": 0}


# -- patterns -------------------------------------------------------------------------------------

SEGMENTS = st.text("ab*?[]!^-.\\|0", min_size=1, max_size=5) | st.sampled_from(
    ["**", "*", "[ab]", "[!a]*", "[^a]", "[]]", "a"]
)
FILES = st.lists(st.lists(st.text("ab.-0]^!\\|", min_size=1, max_size=3), min_size=1, max_size=3), max_size=8)


@given(st.lists(SEGMENTS, min_size=1, max_size=3), FILES)
@example(["**", "b"], [["b"], ["a", "b"], ["a", "a", "b"], [".a", "b"]])
@example(["[]a]"], [["]"], ["a"]])
@example(["*"], [[".a"], ["a"]])
@example(["a[!x]b"], [["a", "b"], ["axb"], ["a-b"]])
@example(["a", "**"], [["a"], ["a", "b"], ["a", "b", "c"], ["a", ".b"]])
def test_patterns_as_glob(segments: list[str], names: list[list[str]]) -> None:
    """glob hides names that begin with a dot, where magic meets them."""
    pattern = "/".join(segments)
    if not glob.has_magic(pattern) or {".", ".."} & set(segments):
        return
    paths = {"/".join(name) for name in names if not {".", ".."} & set(name)}
    target = parse_target(f"s3://b/{pattern}")
    assert target.pattern is not None
    found = {
        path for path in paths if f"s3://b/{path}".startswith(target.prefixes) and _matches(target, f"s3://b/{path}")
    }
    assert found == {path for path in paths if _glob(segments, path.split("/"))}


def _matches(target: Target, url: str) -> bool:
    assert target.pattern is not None
    return target.pattern.fullmatch(url, len(target.folder)) is not None


def _glob(segments: Sequence[str], names: Sequence[str]) -> bool:
    """glob.glob's rules, segment by segment."""
    import fnmatch

    if not segments:
        return not names
    head, *rest = segments
    if head == "**":
        if not rest and len(names) == 1 and not names[0].startswith("."):
            return True
        return (bool(rest) and _glob(rest, names)) or (
            len(names) > 1 and not names[0].startswith(".") and _glob(segments, names[1:])
        )
    if not names or (names[0].startswith(".") and not head.startswith(".")):
        return False
    return fnmatch.fnmatchcase(names[0], head) and _glob(rest, names[1:])


def test_a_pattern_of_folders() -> None:
    names = ["s3://b/y=1/x", "s3://b/y=1/m/_z", "s3://b/y=1/m/z", "s3://b/y=2/x", "s3://b/y=10"]
    assert files_of("s3://b/y=1*/", names) == ["s3://b/y=1/m/z", "s3://b/y=1/x"]
    assert files_of("s3://b/y=1*", names) == ["s3://b/y=10"]
    assert files_of("s3://b/*/m/_*", names) == ["s3://b/y=1/m/_z"]
    assert files_of("s3://b/*/*/z", names) == ["s3://b/y=1/m/z"]


def test_http_has_no_listings() -> None:
    async def listed() -> None:
        store = open_test_store("http", {})
        try:
            await store.list_objects("http://127.0.0.1/t/", context=new_context())
        finally:
            await store.close()

    with pytest.raises(UnsupportedStoreError, match="Give a list of the files' urls"):
        asyncio.run(listed())


def test_hidden_names() -> None:
    assert HIDDEN == (".", "_")


@pytest.mark.parametrize("target", ["s3://b/t/", "s3://b/t/*", "s3://b/t/**"])
def test_empty_markers_of_folders_are_left_out(target: str) -> None:
    """Of EMR and Hadoop. One with content is a file of that name."""
    url = "s3://b/t/day=1_$folder$"
    assert not is_file_of(parse_target(target), url, 0)
    assert is_file_of(parse_target(target), url, 1000)
    assert is_file_of(parse_target(target), "s3://b/t/empty.parquet", 0)  # read, and refused: it may be a failed write


def test_a_pattern_sees_the_key_and_not_what_ends_its_url() -> None:
    assert is_file_of(parse_target("s3://b/t/*.parquet"), "s3://b/t/a?versionId=1.parquet?versionId=")


def test_files_that_hadoop_still_copies_are_left_out() -> None:
    names = [f"s3://b/t/{name}" for name in ("a.parquet", "b.parquet._COPYING_", "c._COPYING_.parquet")]
    expected = ["s3://b/t/a.parquet", "s3://b/t/c._COPYING_.parquet"]
    assert files_of("s3://b/t/", names) == expected
    assert files_of("s3://b/t/*", names) == expected


# -- listings that contain the files of tables -----------------------------------------------------


ROWS = pa.table({"id": pa.array(range(100), pa.int64())})
DUCK = "ducklake-01926f2d-3f6b-7b3c-8a2e-0123456789ab.parquet"


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["_delta_log/0.json", "part-0"], "Delta"),
        (["data/x", "metadata/v1.metadata.json"], "Iceberg"),
        (["data/x", "metadata/v1.gz.metadata.json"], "Iceberg"),
        (["data/x", "metadata/v1.metadata.json.gz"], "Iceberg"),
        (["data/x", "metadata/snap-1-1-a.avro"], "Iceberg"),
        (["data/x", "metadata/version-hint.text"], "Iceberg"),  # its metadata files are gone
        (["data/x", "metadata/9d2b2f4e-5c6a-4c0f-9a86-0f7f3f6f1a10-m12.avro"], "Iceberg"),
        ([".hoodie/hoodie.properties", "x"], "Hudi"),
        (["_spark_metadata/0", "x"], "Spark Structured Streaming"),
        ([DUCK], "DuckLake"),
        (["metadata/x.parquet", "x", "a/_delta_log/0.json", "_delta_log_/x", "m"], None),
        (
            [
                "x-m1.avro",
                "metadata/x.avro",
                "metadata/m1.avro",
                "metadata/sensor-m12.avro",
                "metadata/snap-shot.avro",
                "x.metadata.json.gz",
                "x.metadata.json.zst",
            ],
            None,
        ),
        (["ducklake-1.parquet", "x.metadata.json", "my_delta_log/0.json", "a.hoodie/x"], None),
    ],
)
@pytest.mark.parametrize("depth", ["", "a/", "a/day=1/b/"])
def test_tables_are_noticed(names: list[str], expected: str | None, depth: str) -> None:
    urls = [f"s3://b/t/{depth}{name}" for name in names]

    def found(listing: Listing) -> tuple[str, str, bool] | None:
        table = listing.table
        return None if table is None else (table.format, table.url, table.is_whole)

    folder = f"s3://b/t/{depth}"
    assert found(listing_of("s3://b/t", urls)) == (expected and (expected, folder, not depth))
    assert found(listing_of("s3://b/t/**", urls)) == (expected and (expected, folder, False))
    assert found(listing_of("s3://b/*/**", urls)) == (expected and (expected, folder, False))


def test_patterns_that_leave_tables_out() -> None:
    urls = ["s3://b/t/d/_delta_log/0.json", "s3://b/t/d/x.parquet", "s3://b/t/f/x.parquet", "s3://b/t/d2/x.parquet"]
    for pattern in ("s3://b/t/f/*.parquet", "s3://b/t/[ef]/*", "s3://b/t/d2/*", "s3://b/t/{f,d2}/"):
        assert listing_of(pattern, urls).table is None
    table = listing_of("s3://b/t/*/*.parquet", urls).table
    assert table is not None
    assert table.url == "s3://b/t/d/"


def test_paths_without_a_folder() -> None:
    table = find_table("", ["_delta_log/0.json", "x.parquet"], ["x.parquet"], whole=False)
    assert table is not None
    assert (table.format, table.url) == ("Delta", "")


def test_a_table_without_files_is_named() -> None:
    table = listing_of("s3://b/t", ["s3://b/t/_delta_log/0.json"]).table
    assert table is not None
    assert table.is_whole


def test_a_folder_of_metadata_names_its_table() -> None:
    table = listing_of("s3://b/t/metadata", ["s3://b/t/metadata/v1.metadata.json"]).table
    assert table is not None
    assert (table.url, table.is_whole) == ("s3://b/t/", False)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of tables of 100 rows, 10 of which are deleted; each below a folder of its own."""
    root = tmp_path_factory.mktemp("tables")
    delta = root / "delta/deep/t"
    deltalake.write_deltalake(delta, ROWS)
    deltalake.DeltaTable(delta).delete("id < 10")
    (root / "iceberg").mkdir()
    iceberg = make_table(root / "iceberg", ROWS.schema)
    iceberg.append(ROWS)
    iceberg.delete("id < 10")
    hudi = root / "hudi/t"
    (hudi / ".hoodie").mkdir(parents=True)
    (hudi / ".hoodie/hoodie.properties").touch()
    pq.write_table(ROWS, hudi / "x.parquet")
    (root / "ducklake").mkdir()
    with Lake(root / "ducklake") as lake:
        lake.sql("CREATE TABLE t (id BIGINT)")
        lake.sql("INSERT INTO t SELECT * FROM range(100)")
        lake.sql("DELETE FROM t WHERE id < 10")
    (root / "ducklake/catalog.sqlite").unlink()
    return {
        "delta": delta,
        "iceberg": Path(iceberg.location().removeprefix("file://")),
        "hudi": hudi,
        "ducklake": next(path.parent for path in (root / "ducklake").rglob("ducklake-*.parquet")),
    }


@pytest.mark.parametrize("name", ["delta", "iceberg", "hudi", "ducklake"])
@pytest.mark.parametrize("pattern", ["", "/", "/**/*.parquet", "/**", "/*/**/*.parquet", "/**/"])
async def test_folders_and_patterns_around_a_table(tables: dict[str, Path], name: str, pattern: str) -> None:
    parent = next(path for path in tables[name].parents if path.name == name)
    async with asyncpq.Session() as session:
        for on_bad_file in ("raise", "skip"):
            with pytest.raises(asyncpq.InvalidOptionError, match="deleted or replaced") as caught:
                await session.open_dataset(f"{parent}{pattern}", on_bad_file=on_bad_file)
            assert f"{tables[name]}/" in caught.value.message
            hint = caught.value.hint
            assert hint is not None
            assert ".parquet" not in hint
            if name in ("delta", "iceberg"):
                assert f'open {tables[name]}/ with format="{name}"' in hint
                table = await session.open_dataset(f"{tables[name]}/", format="delta" if name == "delta" else "iceberg")
                assert await table.count() == 90
        files = sorted(map(str, parent.rglob("*.parquet")))  # which their caller knows
        assert await (await session.open_dataset(files, on_bad_file="skip")).count() >= 100


@pytest.mark.parametrize("name", ["delta", "iceberg", "hudi", "ducklake"])
def test_counting_around_a_table(tables: dict[str, Path], name: str) -> None:
    parent = next(path for path in tables[name].parents if path.name == name)
    for url in (parent, f"{parent}/**/*.parquet", f"{tables[name]}/**/*.parquet"):
        done = CliRunner(env={"COLUMNS": "100"}).invoke(app, ["count", str(url)])
        assert (done.exit_code, done.stdout) == (2, "")
        assert f"{tables[name]}/" in done.stderr
        assert "*.parquet" not in done.stderr.replace(str(url), "")


async def test_every_file_if_asked(tables: dict[str, Path]) -> None:
    parent = next(path for path in tables["iceberg"].parents if path.name == "iceberg")
    async with asyncpq.Session() as session:
        with pytest.raises(asyncpq.NotParquetError) as caught:
            await session.open_dataset(parent, format="parquet")
        assert "*.parquet" not in (caught.value.hint or "")
        dataset = await session.open_dataset(f"{parent}/**/*.parquet", format="parquet")
        assert await dataset.count() > 100


async def test_files_that_become_a_table(tmp_path: Path) -> None:
    pq.write_table(ROWS, tmp_path / "0.parquet")
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(tmp_path)
        assert await dataset.count() == 100
        deltalake.convert_to_deltalake(tmp_path)
        with pytest.raises(asyncpq.InvalidOptionError, match="belong to a Delta table"):
            await dataset.count()


INSIDE = [  # patterns and folders inside of a table, whose listings pass none of its markers
    ("delta", "/part-*.parquet"),
    ("delta", "/{part-0,part-1}*.parquet"),
    ("partitioned", "/k=*/"),
    ("partitioned", "/k=*/**/*.parquet"),
    ("partitioned", "/k=[01]/l=*/*.parquet"),
    ("partitioned", "/k=0/"),
    ("partitioned", "/k=0"),
    ("partitioned", "/k=0/l=1/*.parquet"),
    ("partitioned", "/{k=0,k=1}/l=1/"),
    ("partitioned", "/k=0/l=1/part-*.parquet"),
    ("iceberg", "/data/"),
    ("iceberg", "/data"),
    ("iceberg", "/data/*.parquet"),
    ("iceberg", "/data/0*.parquet"),
    ("iceberg", "/d*/*.parquet"),
    ("hudi", "/x*.parquet"),
    ("hudi", "/2024/01/"),
    ("hudi", "/2024/*/*.parquet"),
    ("hudi", "/2024/01/x*.parquet"),
]


@pytest.fixture(scope="module")
def insides(tables: dict[str, Path]) -> dict[str, Path]:
    """Tables as in ``tables``, a Delta table with partitions, and a Hudi table with folders by date."""
    partitioned = tables["delta"].parent.parent / "partitioned"
    rows = ROWS.append_column("k", [[n % 2 for n in range(100)]]).append_column("l", [[n % 3 for n in range(100)]])
    deltalake.write_deltalake(partitioned, rows, partition_by=["k", "l"])
    deltalake.DeltaTable(partitioned).delete("id < 10")
    day = tables["hudi"] / "2024/01"
    day.mkdir(parents=True, exist_ok=True)
    pq.write_table(ROWS, day / "x.parquet")
    (day / ".hoodie_partition_metadata").touch()
    return {**tables, "partitioned": partitioned}


@pytest.mark.parametrize(("name", "inside"), INSIDE)
async def test_patterns_inside_of_a_table(insides: dict[str, Path], name: str, inside: str) -> None:
    url = f"{insides[name]}{inside}"
    async with asyncpq.Session() as session:
        with pytest.raises(asyncpq.InvalidOptionError, match="deleted or replaced") as caught:
            await session.open_dataset(url)
        assert str(insides[name]) in str(caught.value)
        with pytest.raises(asyncpq.InvalidOptionError, match="deleted or replaced"):
            await session.build_index(url, [Bounds()], at=f"{insides[name]}-index")
        assert await (await session.open_dataset(url, format="parquet")).count() > 0


@pytest.mark.parametrize("store", ["s3", "s3-small-pages", "obstore", "memory"])
async def test_patterns_inside_of_a_table_in_stores(insides: dict[str, Path], store: str) -> None:
    async with ObjectServer() as server:
        options: dict[str, Any] = {}
        root, filesystem = "s3://bucket/lake", fsspec.filesystem("memory")
        if store == "memory":
            root = f"memory://{uuid.uuid4().hex}/lake"
        elif store == "obstore":
            options = {"s3": obstore_options(server, "s3")}
        else:
            options = {"s3": server.storage_options}
        for name, folder in insides.items():
            for path in folder.rglob("*"):
                if path.is_file():
                    key = f"{name}/{path.relative_to(folder)}"
                    if store == "memory":
                        filesystem.pipe_file(f"{root}/{key}", path.read_bytes())
                    else:
                        server.put(f"bucket/lake/{key}", path.read_bytes())
        if store == "s3-small-pages":
            server.page_keys = 3
        for name, inside in INSIDE:
            async with asyncpq.Session(options) as session:
                with pytest.raises(asyncpq.InvalidOptionError, match="deleted or replaced") as caught:
                    await session.open_dataset(f"{root}/{name}{inside}")
                assert f"{root}/{name}/" in str(caught.value)


async def test_what_the_look_around_costs() -> None:
    content = parquet_bytes(ROWS)
    async with ObjectServer() as server, asyncpq.Session({"s3": server.storage_options}) as session:
        for key in ("x/part-0.parquet", "x/part-1.parquet", "y/k=1/0.parquet", "data/z/0.parquet"):
            server.put(f"bucket/lake/{key}", content)
        for url, listings in (
            ("lake/x/", 1),
            ("lake/x/*.parquet", 1),
            ("lake/**/*.parquet", 1),
            ("lake/x/part-*.parquet", 2),
            ("lake/x/part-[01].parquet", 1),  # seen before
            ("lake/y/k=*/", 2),
            ("lake/y/k=1/", 1),
            ("lake/data/z/", 2),
        ):
            dataset = await session.open_dataset(f"s3://bucket/{url}")
            assert dataset.opening is not None
            assert dataset.opening.requests_by_purpose["list"] == listings, url
            assert await dataset.count() >= 100
            again = await session.open_dataset(f"s3://bucket/{url}")
            assert again.opening is not None
            assert again.opening.requests_by_purpose["list"] == 1
            assert {record.round for record in dataset.opening.log if record.purpose == "list"} == {1}
        plain = await session.open_dataset("s3://bucket/lake/y/k=*/", format="parquet")
        assert plain.opening is not None
        assert plain.opening.requests_by_purpose["list"] == 1


async def test_a_store_that_refuses_the_look_around() -> None:
    data = parquet_bytes(ROWS)
    async with ObjectServer() as server, asyncpq.Session({"s3": server.storage_options}) as session:
        server.put("bucket/x/part-0.parquet", data)
        refused = Fault(status=403, code="AccessDenied")
        server.faults = lambda request: refused if "delimiter" in request.target else Fault()
        for _ in range(2):
            dataset = await session.open_dataset("s3://bucket/x/part-*.parquet")
            assert await dataset.count() == 100
        assert sum("delimiter" in request.target for request in server.log) == 1  # and none for the second


async def test_a_look_around_that_fails_beside_the_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both fail as the session is closed: no error is left for asyncio to log."""

    async def refuse(*_: Any, **__: Any) -> Any:
        raise asyncpq.UsageError("the session is closed")

    async def refuse_later(*_: Any, **__: Any) -> Any:
        for _turn in range(9):
            await asyncio.sleep(0)
        await refuse()

    logged: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
    monkeypatch.setattr(S3Store, "first_names", refuse)
    monkeypatch.setattr(S3Store, "list_objects", refuse_later)
    async with ObjectServer() as server, asyncpq.Session({"s3": server.storage_options}) as session:
        with pytest.raises(asyncpq.UsageError, match="closed"):
            await session.open_dataset("s3://bucket/x/part-*.parquet")
    gc.collect()
    assert logged == []


async def test_a_folder_that_is_a_table_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deltalake.write_deltalake(tmp_path / "t", ROWS)
    (file,) = (tmp_path / "t").glob("*.parquet")
    monkeypatch.chdir(tmp_path / "t")
    async with asyncpq.Session() as session:
        for url in (f"{file.name[:5]}*.parquet", f"./{file.name[:5]}*", f"file://{tmp_path}/t/{file.name[:5]}*"):
            with pytest.raises(asyncpq.InvalidOptionError, match="deleted or replaced"):
                await session.open_dataset(url)
        assert await (await session.open_dataset(file)).count() == 100  # one file: its caller's choice
        shutil.rmtree("_delta_log")
        assert await (await session.open_dataset(f"{file.name[:5]}*.parquet")).count() == 100


@pytest.mark.parametrize(("name", "inside"), [("delta", "/part-*.parquet"), ("iceberg", "/data/"), ("hudi", "/x*")])
def test_other_doors_refuse_patterns_inside_of_a_table(insides: dict[str, Path], name: str, inside: str) -> None:
    url, table = f"{insides[name]}{inside}", f"{insides[name]}/"
    for command in (
        ["count", url],
        ["query", url, "--limit", "1"],
        ["lookup", url, "--key", "id=1"],
        ["index", "build", url, "--at", "i"],
    ):
        done = CliRunner(env={"COLUMNS": "200"}).invoke(app, command)
        assert (done.exit_code, done.stdout) == (2, "")
        assert table in done.stderr
        assert "pass format=" not in done.stderr
        assert "pattern of" not in done.stderr
        if name != "hudi":
            assert f"To read the table, name {table}." in done.stderr
    with pytest.raises(asyncpq.InvalidOptionError, match="deleted or replaced"):
        asyncpq.polars.scan(url).collect()


@pytest.mark.parametrize(
    ("prefix", "folders"),
    [
        ("s3://b/t/x/", []),
        ("s3://b/t/x/p", ["s3://b/t/x/"]),
        ("s3://b/", []),
        ("s3://b", []),
        ("s3://b/p", ["s3://b/"]),
        ("s3://data/k=1", ["s3://data/"]),
        ("s3://b/k=1/", ["s3://b/"]),
        ("s3://b/t/k=1/l=2/p", ["s3://b/t/k=1/l=2/", "s3://b/t/k=1/", "s3://b/t/"]),
        ("s3://b/t/data/01/k=1/", ["s3://b/t/data/01/", "s3://b/t/data/", "s3://b/t/"]),
        ("s3://b/t/data/0101/1/", ["s3://b/t/"]),
        ("s3://b/t/5G/k=1/", ["s3://b/t/5G/", "s3://b/t/"]),
        ("abfss://c@a.dfs.core.windows.net/t/k=1/", ["abfss://c@a.dfs.core.windows.net/t/"]),
        ("file:///t/k=1/", ["/t/"]),
        ("/t/k=1/p", ["/t/k=1/", "/t/"]),
        ("/", []),
        ("s3://b/" + "k=1/" * 100, [f"s3://b/{'k=1/' * n}" for n in range(99, 83, -1)]),
    ],
)
def test_folders_around(prefix: str, folders: list[str]) -> None:
    assert folders_around(prefix) == folders


async def test_a_table_with_many_names_before_its_markers() -> None:
    async with ObjectServer() as server, asyncpq.Session({"s3": server.storage_options}) as session:
        server.page_keys = 5
        data = parquet_bytes(ROWS)
        for number in range(20):
            server.put(f"bucket/t/DAY={number}/0.parquet", data)
            server.put(f"bucket/t/metadata/9d2b2f4e-5c6a-4c0f-9a86-0f7f3f6f1a{number:02}-m0.avro", b"")
        server.put("bucket/t/metadata/v1.metadata.json", b"{}")
        with pytest.raises(asyncpq.InvalidOptionError, match="an Iceberg table, s3://bucket/t/"):
            await session.open_dataset("s3://bucket/t/DAY=1/")
