"""The schema model: trees, look-up by name, and lies about it."""

from __future__ import annotations

import itertools
import tracemalloc

import pytest

from asyncpq.errors import (
    AmbiguousColumnError,
    ColumnNotFoundError,
    CorruptFileError,
    FormatError,
    ResourceLimitError,
    UnsupportedFeatureError,
)
from asyncpq.parquet.schema import ParquetSchema, decode_schema
from asyncpq.parquet.thrift import STRUCT, CompactReader, CompactWriter
from tests.costs import python_calls
from tests.parquet.schemas import ROOT, Element, decode, group, leaf
from tests.parquet_samples import sample_metadata


def test_levels_paths_and_fields_of_a_nested_schema() -> None:
    schema = decode(
        group(ROOT, 3, None),
        leaf(b"id"),
        group(b"a", 2, 1),
        group(b"list", 1, 2),
        leaf(b"element", 1),
        leaf(b"b", 2),
        leaf(b"z", 1),
    )
    assert [(x.dotted, x.max_definition_level, x.max_repetition_level, x.is_flat) for x in schema.leaves] == [
        ("id", 0, 0, True),
        ("a.list.element", 3, 1, False),
        ("a.b", 2, 1, False),
        ("z", 1, 0, True),
    ]
    assert [(x.index, x.element_index, x.ancestor_indexes, x.field_index) for x in schema.leaves] == [
        (0, 1, (), 0),
        (1, 4, (2, 3), 1),
        (2, 5, (2,), 1),
        (3, 6, (), 2),
    ]
    assert [(x.index, x.name, x.element_index, x.first_leaf, x.leaf_stop) for x in schema.fields] == [
        (0, "id", 1, 0, 1),
        (1, "a", 2, 1, 3),
        (2, "z", 6, 3, 4),
    ]


def test_elements_can_be_copied_verbatim() -> None:
    metadata = sample_metadata("nested")
    spans = [(element.raw_start, element.raw_stop) for element in metadata.schema.elements]
    assert all(a[1] == b[0] for a, b in itertools.pairwise(spans))
    writer = CompactWriter()
    writer.field_list(2, STRUCT, len(spans))
    for start, stop in spans:
        writer.raw(metadata.data[start:stop])
    reader = CompactReader(writer.getvalue())
    reader.field(0)
    copied = decode_schema(reader, max_elements=1 << 20)
    assert [element[:10] for element in copied.elements] == [element[:10] for element in metadata.schema.elements]


def test_look_up_by_name_and_ordinal() -> None:
    schema = decode(group(ROOT, 4, None), leaf(b"price"), leaf(b"twice"), leaf(b"twice"), group(b"g", 1), leaf(b"x"))
    assert schema.projection("price") == schema.projection(0) == schema.whole_fields[0]
    assert schema.projection("g.x").leaves == (3,)
    assert schema.field("g") is schema.field(3) is schema.fields[3]
    with pytest.raises(AmbiguousColumnError, match="ordinal"):
        schema.projection("twice")
    with pytest.raises(AmbiguousColumnError):
        schema.field("twice")
    assert schema.projection(2).leaves == (2,)
    with pytest.raises(ColumnNotFoundError, match="Did you mean 'price'"):
        schema.projection("prise")
    with pytest.raises(ColumnNotFoundError, match="inside the top-level column 'g'"):
        schema.field("g.x")
    for ordinal in (-1, 4):
        with pytest.raises(ColumnNotFoundError):
            schema.projection(ordinal)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("ID", "Did you mean 'id'?"),
        ("iD", "Did you mean 'id'?"),
        ("*", "Leave the columns out to read all of them."),
        ("address", "Did you mean 'Address'"),
        ("ADDRESS.ZIP", "Did you mean 'Address.zip'"),
        ("quantity", "Its columns are 'id', 'Address'."),
    ],
)
def test_a_missing_column_has_a_hint(name: str, hint: str) -> None:
    schema = decode(group(ROOT, 2, None), leaf(b"id"), group(b"Address", 1), leaf(b"zip"))
    for look_up in (schema.projection, schema.field):
        with pytest.raises(ColumnNotFoundError) as caught:
            look_up(name)
        assert caught.value.hint is not None
        assert hint in caught.value.hint


def test_a_hint_is_short() -> None:
    schema = decode(group(ROOT, 500, None), *(leaf(b"%d" % n + b"x" * 1000) for n in range(500)))
    with pytest.raises(ColumnNotFoundError) as caught:
        schema.projection("quantity")
    assert caught.value.hint is not None
    assert caught.value.hint.endswith("500 in all.")
    assert len(caught.value.hint) < 700


def test_a_file_without_columns() -> None:
    schema = decode(group(ROOT, 0, None))
    assert schema.leaves == ()
    with pytest.raises(ColumnNotFoundError) as caught:
        schema.field("id")
    assert caught.value.hint is None


@pytest.mark.parametrize(
    "elements",
    [
        pytest.param([group(ROOT, 2, None), leaf(b"a")], id="a child is missing"),
        pytest.param([group(ROOT, 1, None), leaf(b"a"), leaf(b"b")], id="a child too many"),
        pytest.param([group(ROOT, 1, None), group(b"g", 2), leaf(b"a")], id="a grandchild is missing"),
        pytest.param([group(ROOT, 1, None), group(b"g", -1), leaf(b"a")], id="a negative count"),
        pytest.param([group(ROOT, -1, None)], id="a negative count of the root"),
        pytest.param([leaf(ROOT)], id="the root is a leaf"),
        pytest.param([group(ROOT, 1, None), {1: 1, 3: 0}], id="no name"),
        pytest.param([group(ROOT, 1, None), leaf(b"\xff\xfe")], id="a name that is not UTF-8"),
        pytest.param([group(ROOT, 1, None), leaf(b"a", physical=8)], id="an unknown physical type"),
        pytest.param([group(ROOT, 1, None), leaf(b"a", repetition=4)], id="an unknown repetition"),
        pytest.param([group(ROOT, 2, None), leaf(b"a", _5=1), leaf(b"b")], id="a group with a type lacks a sibling"),
        pytest.param([], id="no elements"),
    ],
)
def test_lying_schemas_are_corrupt(elements: list[Element]) -> None:
    with pytest.raises(CorruptFileError):
        decode(*elements)


@pytest.mark.parametrize("repetition", [None, -1, 1, 2, 3, 9])
def test_the_repetition_of_the_root_means_nothing(repetition: int | None) -> None:
    schema = decode(group(ROOT, 1, repetition), leaf(b"a"))
    assert [(found.max_definition_level, found.max_repetition_level) for found in schema.leaves] == [(0, 0)]


def test_an_element_without_repetition_is_required() -> None:
    schema = decode(group(ROOT, 2, None), {1: 1, 4: b"a"}, leaf(b"b", repetition=1))
    assert [found.max_definition_level for found in schema.leaves] == [0, 1]


def test_a_group_with_a_physical_type_is_a_group() -> None:
    schema = decode(group(ROOT, 1, None), leaf(b"g", _5=1), leaf(b"a"))
    assert [found.path for found in schema.leaves] == [("g", "a")]


def test_vectors_are_unsupported() -> None:
    with pytest.raises(UnsupportedFeatureError, match="VECTOR"):
        decode(group(ROOT, 1, None), leaf(b"a", repetition=3))


def test_deep_schemas_are_a_resource_limit() -> None:
    def deep(levels: int) -> ParquetSchema:
        return decode(group(ROOT, 1, None), *[group(b"g", 1)] * levels, leaf(b"a"))

    assert len(deep(64).leaves[0].path) == 65
    for levels in (65, 100_000):
        with pytest.raises(ResourceLimitError, match="deeper"):
            deep(levels)


def test_a_child_count_of_two_billion_costs_nothing() -> None:
    def lying() -> None:
        with pytest.raises(FormatError):
            decode(group(ROOT, 2**31 - 1, None), leaf(b"a"))

    tracemalloc.start()
    try:
        lying()
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert python_calls(lying) < 10_000


@pytest.mark.parametrize("name", ["line\nbreak", "\x1b[31mred", "nul\0", ""])
def test_odd_names_are_kept_and_shown_escaped(name: str) -> None:
    schema = decode(group(ROOT, 1, None), leaf(name.encode()))
    assert schema.field(name) is schema.fields[0]
    assert schema.leaves[0].path == (name,)
    with pytest.raises(ColumnNotFoundError) as caught:
        schema.projection(name + "\n?")
    assert str(caught.value).isprintable()
