"""What a dataset's target means, which files of a folder are its files, and how two listings differ."""

from __future__ import annotations

import asyncio
import gc
import glob
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import asyncpq
from asyncpq.datasets.listing import HIDDEN, FileRules, Listing, Target, is_file_of, list_files, parse_target
from asyncpq.datasets.model import DataFile, DataFiles
from asyncpq.datasets.partitioning import parse_partitioning
from asyncpq.errors import InvalidOptionError, ObjectNotFoundError, UnsupportedStoreError
from asyncpq.metrics import ReadMetrics
from asyncpq.storage.base import ListedObject, ListedObjects, ObjectRow, RequestContext, Validator
from asyncpq.storage.s3 import direct
from asyncpq.storage.s3.key_listing import ListedKey
from asyncpq.testing import ObjectServer
from tests.store_backends import open_test_store


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
