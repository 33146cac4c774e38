"""Decode a top-level field that is not one flat column: pages of its leaf columns come in, arrays of the field go out.

Leaf columns are planned and fetched one by one. Those whose pages have the same rows are decoded together, as pyarrow
decodes a path. Leaf columns in lists, or in groups that may be null, are decoded one by one and merged: if pyarrow
decodes them together, it takes the lists and nulls that they share from one leaf and does not check the others.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

import pyarrow as pa

from asyncpq.checkpoints import checkpoint
from asyncpq.decoding.arrow import (
    few_copied,
    first_with_forbidden_null,
    held_bytes,
    join,
    leaf_types,
    maps_as_lists,
    read_leaves,
    take_rows,
    typed_error,
)
from asyncpq.decoding.decoded_size import leaf_bounds, nested_bytes, refuse
from asyncpq.decoding.field_types import field_template, field_types, projected_field
from asyncpq.decoding.leaf import DecodeLimits
from asyncpq.decoding.leaf_sources import PagedSource, StreamedSource
from asyncpq.decoding.nested import LeafPages, NestedLeaf, PartialField, is_indexed, merge
from asyncpq.decoding.splice import FieldTemplate
from asyncpq.errors import AsyncpqError, UnsupportedFeatureError
from asyncpq.objects.page_indexes import own_offset_index
from asyncpq.objects.version import FileVersion
from asyncpq.parquet.logical_types import Repetition
from asyncpq.parquet.page_index import PageLocationError
from asyncpq.parquet.schema import Field, Projection
from asyncpq.pruning.row_ranges import RowRanges


class FieldSource:
    """Returns the rows of a top-level field that is not one flat column, and checks that its leaf columns agree.

    ``leaves`` are leaf columns that are fetched page by page or as whole chunks, by ordinal. ``alone`` are the sources
    of the field's other leaf columns, which have only structs above them and are decoded by themselves. ``decrypt`` is
    set for an encrypted file; it then decodes the leaves' whole chunks.
    """

    def __init__(
        self,
        version: FileVersion,
        field: Field,
        leaves: Mapping[int, NestedLeaf],
        num_rows: int,
        extensions: frozenset[str],
        alone: Mapping[int, PagedSource | StreamedSource] | None = None,
        *,
        decrypt: Callable[[tuple[int, ...], DecodeLimits], pa.Array] | None = None,
    ) -> None:
        self._version = version
        self._field = field
        self._leaves = leaves
        self._alone = alone or {}
        self._decrypt = decrypt
        self._num_rows = num_rows
        self._extensions = extensions
        self._checks_keys = version.metadata.schema.has_optional_map_key(field)  # pages then decode to lists of structs
        self._whole: dict[tuple[tuple[int, ...], bool], pa.Array] = {}  # leaves read as whole chunks, decoded
        self.pages_decoded: int = 0

    def select(self, rows: RowRanges, limits: DecodeLimits, leaves: Sequence[int] | None = None) -> pa.Array:
        """Return the values of exactly ``rows``, whose pages have arrived, of the field cut to the leaf columns
        ``leaves`` (None: all).

        Raises CorruptFileError if pages contradict header, index or footer, or leaves contradict each other;
        ResourceLimitError if the pages would decode to too many bytes.
        """
        checkpoint()
        try:
            wanted = sorted({*self._leaves, *self._alone}) if leaves is None else leaves
            return self._select(rows, limits, tuple(wanted))
        except AsyncpqError as error:
            raise error.locate(column=self._field.name) from error.__cause__
        except (pa.ArrowException, OverflowError) as error:
            raise typed_error(error, "pages cannot be put together").locate(column=self._field.name) from error

    def _select(self, rows: RowRanges, limits: DecodeLimits, leaves: tuple[int, ...]) -> pa.Array:
        parts: list[PartialField] = []
        limits = limits.copy()
        for leaf in leaves:
            if leaf in self._alone:
                array = self._alone[leaf].select(rows, limits)
                parts.append(PartialField((leaf,), array))
                limits.max_decoded_bytes = max(0, limits.max_decoded_bytes - held_bytes(array))
        paged = [leaf for leaf in leaves if leaf in self._leaves and self._leaves[leaf].paged]
        whole = tuple([leaf for leaf in leaves if leaf in self._leaves and not self._leaves[leaf].paged])
        pages = {leaf: self._leaves[leaf].pages_of(rows, limits) for leaf in paged}
        groups = self._groups(pages)
        as_storage = self._checks_keys or bool(parts) or len(groups) + bool(whole) > 1
        if groups:
            arrays = self._decode(pages, groups, limits, as_storage=as_storage)
            for group, array in zip(groups, arrays, strict=True):
                positions = _positions(rows, pages[group[0]].rows)
                parts.append(PartialField(tuple(group), few_copied(take_rows(array, positions, 0))))
        if whole:
            array = self._whole_chunks(whole, limits, as_storage=as_storage)
            taken = take_rows(array, rows, 0)
            if len(taken) * 2 <= len(array):
                taken = pa.concat_arrays([taken])  # a copy: a slice would keep all rows in memory
            parts.append(PartialField(whole, taken))
        if not as_storage:
            return parts[0].array
        array = self._merged(parts, leaves)
        return self._with_maps(array, rows, leaves) if self._checks_keys else array

    def _with_maps(self, array: pa.Array, rows: RowRanges, leaves: tuple[int, ...]) -> pa.Array:
        """Convert the lists of structs of ``rows`` in ``array`` to maps. Raises UnsupportedFeatureError for a null
        key."""
        position = first_with_forbidden_null(array)
        if position is None:
            return self._merge([PartialField(leaves, array)], self._projected(leaves, self._extensions).type)
        number, leaf = next(iter(self._leaves.items()))
        groups = self._version.metadata.row_groups
        first_row = next(group.first_row for group in groups if group.chunk(number).start == leaf.chunk.start)
        raise UnsupportedFeatureError(
            f"row {first_row + [*rows.rows()][position]} has a map with a null key, which Arrow does not have",
            column=self._field.name,
            hint="Leave the column out, or read only the map's values.",
        )

    def _groups(self, pages: Mapping[int, LeafPages]) -> list[list[int]]:
        """Group the leaves that can be decoded together: their pages have the same rows, and only structs are above."""
        groups: dict[tuple[RowRanges, int | None], list[int]] = {}
        for number, leaf_pages in pages.items():
            leaf = self._leaves[number].leaf
            optional = leaf.element.repetition is Repetition.OPTIONAL
            apart = leaf.max_repetition_level > 0 or leaf.max_definition_level > optional  # see the module's docstring
            groups.setdefault((leaf_pages.rows, number if apart else None), []).append(number)
        return list(groups.values())

    def _merged(self, parts: Sequence[PartialField], leaves: tuple[int, ...], *, as_storage: bool = False) -> pa.Array:
        target = self._projected(leaves, frozenset() if as_storage else self._extensions)
        return self._merge(parts, (maps_as_lists(target) if self._checks_keys else target).type)

    def _merge(self, parts: Sequence[PartialField], target: pa.DataType) -> pa.Array:
        (field_type,) = field_types(self._version, [self._field.index], self._extensions)
        return merge(parts, field_type.arrow.type, self._field.first_leaf, target)

    def _projected(self, leaves: tuple[int, ...], extensions: frozenset[str]) -> pa.Field:
        return projected_field(self._version, Projection(self._field.index, leaves), extensions)

    def _whole_chunks(self, leaves: tuple[int, ...], limits: DecodeLimits, *, as_storage: bool) -> pa.Array:
        """Return all rows of leaf columns that were fetched as whole chunks, decoded at the first call."""
        array = self._whole.get((leaves, as_storage))
        if array is None:
            if self._decrypt is None:
                array = self._decode_chunks(leaves, limits, as_storage=as_storage)
            else:
                array = self._decrypt(leaves, limits)
                self.pages_decoded += 1
            self._whole[leaves, as_storage] = array
        return array

    def _decode_chunks(self, leaves: tuple[int, ...], limits: DecodeLimits, *, as_storage: bool) -> pa.Array:
        pages = {leaf: self._leaves[leaf].pages_of(RowRanges.all(self._num_rows), limits) for leaf in leaves}
        size = sum(page.header.uncompressed_size for leaf_pages in pages.values() for page in leaf_pages.pages)
        if size > limits.max_decoded_bytes:
            raise refuse("the values of a nested column", size, limits.max_decoded_bytes, self._field.name)
        groups = self._groups(pages)
        as_storage = as_storage or len(groups) > 1
        arrays = self._decode(pages, groups, limits, as_storage=as_storage)
        if len(groups) == 1:
            return arrays[0]
        parts = [PartialField(tuple(group), array) for group, array in zip(groups, arrays, strict=True)]
        return self._merged(parts, leaves, as_storage=as_storage)

    def _decode(
        self, pages: Mapping[int, LeafPages], groups: Sequence[Sequence[int]], limits: DecodeLimits, *, as_storage: bool
    ) -> list[pa.Array]:
        """Decode each group of leaf columns to one array: the nested field with only these leaves.

        The pages of a group's leaves have the same rows. ``as_storage``: extension types are replaced by their storage
        types, since they cannot be made from some of their leaves.
        """
        version, field = self._version, self._field
        (field_type,) = field_types(version, [field.index], self._extensions)
        self._check_size(pages, groups, field_type.arrow.type, limits)
        template = field_template(version, field, self._extensions, as_storage=as_storage)
        columns = self._read(template, pages, groups, limits)
        arrays: list[pa.Array] = []
        for group, column in zip(groups, columns, strict=True):
            rows = pages[group[0]].rows
            if len(column) != rows.num_rows:
                source = "OffsetIndex" if self._leaves[group[0]].paged else "footer"
                raise PageLocationError(
                    f"pages have {len(column)} rows, but the {source} says {rows.num_rows}", column=field.name
                )
            array = join(column.chunks, column.type)
            for number in group:
                leaf = self._leaves[number]
                pages[number].check_rows(array, field_type.arrow.type, field.first_leaf, group, leaf.leaf)
                if not leaf.paged and own_offset_index(version, leaf.chunk, number) is None:
                    leaf.locations = pages[number].locations(
                        array, field_type.arrow.type, field.first_leaf, group, leaf.leaf
                    )
            arrays.append(array)
        self.pages_decoded += sum([len(leaf_pages.content.pages) for leaf_pages in pages.values()])
        return arrays

    def _read(
        self,
        template: FieldTemplate,
        pages: Mapping[int, LeafPages],
        groups: Sequence[Sequence[int]],
        limits: DecodeLimits,
        *,
        as_dictionary: Sequence[str] = (),
    ) -> list[pa.ChunkedArray]:
        """Decode the groups' pages in a spliced file (``splice``), whose footer states one row more than any leaf has,
        so that too many rows show."""
        rows = max(leaf_pages.rows.num_rows for leaf_pages in pages.values())
        contents = {
            number: leaf_pages.readable(self._leaves[number].leaf, verify_crc=limits.verify_crc)
            for number, leaf_pages in pages.items()
        }
        file = template.splice(contents, num_rows=rows + 1)
        first = self._field.first_leaf
        return read_leaves(
            file,
            [[leaf - first for leaf in group] for group in groups],
            verify_crc=limits.verify_crc,
            as_dictionary=as_dictionary,
            int96_unit=template.int96_unit,
        )

    # -- sizes ------------------------------------------------------------------------------------

    def _check_size(
        self, pages: Mapping[int, LeafPages], groups: Sequence[Sequence[int]], type_: pa.DataType, limits: DecodeLimits
    ) -> None:
        """Raise ResourceLimitError if pages would decode to too many bytes."""
        limit = limits.max_decoded_bytes
        types = leaf_types(type_)
        first = self._field.first_leaf
        if len(types) != self._field.leaf_stop - first:
            raise UnsupportedFeatureError(
                f"pyarrow reads the column as {type_}, which has {len(types)} leaf columns, but the file's schema has "
                f"{self._field.leaf_stop - first}",
                hint="Leave the column out, or read the file with another program.",
            )
        proven = possible = 0
        for number, leaf_pages in pages.items():
            leaf = self._leaves[number].leaf
            content = leaf_pages.content
            chunk = content.chunk._replace(num_values=content.num_values)
            try:
                bounds = leaf_bounds(leaf, chunk, leaf_pages.pages, *types[number - first], limit)
            except AsyncpqError as error:
                raise error.locate(column=leaf.dotted) from error.__cause__
            proven += bounds[0]
            possible += bounds[1]
            if proven > limit:
                raise refuse("the pages of a nested column in one row group", proven, limit, leaf.dotted)
        if proven + possible > limit:
            self._check_exactly(pages, groups, limits)

    def _check_exactly(
        self, pages: Mapping[int, LeafPages], groups: Sequence[Sequence[int]], limits: DecodeLimits
    ) -> None:
        """Raise ResourceLimitError if the decoded size is too large. It is measured by decoding the pages with
        dictionaries kept.

        pyarrow makes no dictionaries for pages of deltas, which writers use once a dictionary is full. A leaf with both
        kinds is measured apart: its pages of indices are decoded, its other pages are bounded by their sizes.
        """
        indexed = [number for number, leaf_pages in pages.items() if leaf_pages.indexed]
        mixed = {number for number in indexed if pages[number].mixed}
        paths = [self._leaves[number].leaf.dotted for number in indexed]
        if len(set(paths)) != len(paths):
            raise UnsupportedFeatureError(
                "asyncpq does not support a large nested column with two leaves of the same path"
            )
        template = field_template(self._version, self._field, self._extensions, bare=True)
        shown = {
            number: leaf_pages.only_indexed() if number in mixed else leaf_pages for number, leaf_pages in pages.items()
        }
        apart = [[number for number in group if number not in mixed] for group in groups]
        asked = [group for group in apart if group] + [[number] for number in mixed]
        columns = self._read(template, shown, asked, limits, as_dictionary=paths)
        size = 0
        types = leaf_types(field_types(self._version, [self._field.index], self._extensions)[0].arrow.type)
        for number in mixed:  # an upper bound of the bytes of the data pages without indices
            leaf_pages, of_leaf = pages[number], types[number - self._field.first_leaf]
            rest = [page for page in leaf_pages.pages if page.header.is_data and not is_indexed(page)]
            chunk = leaf_pages.content.chunk._replace(num_values=sum(page.header.num_values for page in rest))
            size += sum(leaf_bounds(self._leaves[number].leaf, chunk, rest, *of_leaf, limits.max_decoded_bytes))
        for group, column in zip(asked, columns, strict=True):
            projection = Projection(self._field.index, tuple(group))
            type_ = projected_field(self._version, projection, frozenset()).type
            size += sum(nested_bytes(array, type_) for array in column.chunks)
        if size > limits.max_decoded_bytes:
            what = "the pages of a nested column in one row group"
            raise refuse(what, size, limits.max_decoded_bytes, self._field.name)

    def discard_before(self, row: int) -> None:
        """Release the pages and decoded rows before ``row``."""
        if row >= self._num_rows:
            self._whole.clear()


def _positions(rows: RowRanges, held: RowRanges) -> RowRanges:
    """Convert ``rows`` to positions in a sequence that has exactly the rows ``held``, which contain all of them."""
    if held.num_ranges == 1:
        return rows.shift(-held.start)
    before = [0, *accumulate(map(int.__sub__, held.stops, held.starts))]
    positions: list[tuple[int, int]] = []
    for start, stop in rows:
        while start < stop:
            index = bisect_right(held.starts, start) - 1
            shift = before[index] - held.starts[index]
            end = min(stop, held.stops[index])
            positions.append((start + shift, end + shift))
            start = end
    return RowRanges.from_sorted(positions)
