"""Choose small files of a run for ``tests/data/zoo``: ``python -m tests.zoo.keep --folder .zoo``.

Each chosen file adds what none of the others has: a version, a codec, a set of encodings or a shape of table of its
writer, or a type of column, with and without page indexes; the more for its bytes, the earlier.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq

from tests.zoo.registry import WRITERS, Writer

KEPT = Path(__file__).resolve().parents[1] / "data" / "zoo"
MOST_BYTES = 4_200_000
MOST_FILE_BYTES = 120_000
Feature = tuple[str, ...]


def features(writer: Writer, path: Path) -> frozenset[Feature]:
    """What a file has that others may lack."""
    metadata = pq.ParquetFile(path).metadata
    if not metadata.num_rows:
        return frozenset({("empty", writer.name)})
    found: set[Feature] = {("version", writer.name, writer.version), ("table", writer.name, path.stem.split("-")[0])}
    found |= {("option", word) for word in path.stem.split("-")[1:]}
    for group in range(min(metadata.num_row_groups, 2)):
        for at in range(metadata.num_columns):
            column = metadata.row_group(group).column(at)
            leaf = metadata.schema.column(at)
            index = f"{column.has_offset_index} {column.has_column_index}"
            found.add(("codec", writer.name, column.compression))
            found.add(("type", leaf.physical_type, str(leaf.logical_type), index))
            found.add(("encodings", writer.name, *sorted(column.encodings), index))
    return frozenset(found)


def choose(candidates: dict[Path, frozenset[Feature]]) -> list[Path]:
    """The files that add most for their bytes, until nothing is new or the bytes are spent."""
    left, seen, spent, chosen = dict(candidates), set[Feature](), 0, list[Path]()
    while left:
        best = max(left, key=lambda path: (_weight(left[path] - seen) / (20_000 + path.stat().st_size), str(path)))
        new = left.pop(best) - seen
        size = best.stat().st_size
        if not new:
            break
        if spent + size <= MOST_BYTES:
            chosen.append(best)
            seen |= new
            spent += size
    return sorted(chosen)


def _weight(new: frozenset[Feature]) -> int:
    return sum(4 if feature[0] == "version" else 1 for feature in new)


def main() -> None:
    """Choose, copy, and write the manifest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="of a run of `make zoo`")
    parser.add_argument("--always", action="append", default=[], help="name-version/variant that must be among them")
    arguments = parser.parse_args()
    files: Path = arguments.folder / "files"
    writers = {writer.folder: writer for writer in WRITERS}
    results = {path.stem: json.loads(path.read_text()) for path in (arguments.folder / "results").glob("*.json")}
    candidates: dict[Path, frozenset[Feature]] = {}
    for folder, result in results.items():
        for verdict in result["verdicts"]:
            path = files / folder / f"{verdict['variant']}.parquet"
            if (
                folder in writers
                and verdict["outcome"] == "right"
                and path.is_file()
                and path.stat().st_size <= MOST_FILE_BYTES
            ):
                candidates[path] = features(writers[folder], path)
                if f"{folder}/{path.stem}" in arguments.always:
                    candidates[path] |= {("always", str(path), str(at)) for at in range(1000)}
    shutil.rmtree(KEPT, ignore_errors=True)
    manifest = {}
    for path in choose(candidates):
        folder = path.parent.name
        (KEPT / folder).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, KEPT / folder / path.name)
        manifest[f"{folder}/{path.stem}"] = {
            "writer": results[folder]["said"] or f"{writers[folder].name} {writers[folder].version}",
            "environment": repr(writers[folder].environment),
            "command": f"make zoo ARGS='--only {folder}'",
        }
    (KEPT / "manifest.json").write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
