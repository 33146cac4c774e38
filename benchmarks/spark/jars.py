"""S3A, which Spark does not bring, for the benchmarks alone: the jars of jars.txt, each checked against its SHA-256.

They come from Maven Central, or from the repository whose url ASYNCPQ_MAVEN_REPOSITORY has.
"""

from __future__ import annotations

import hashlib
import os
import urllib.request
from pathlib import Path

LIST = Path(__file__).with_name("jars.txt")
_CENTRAL = "https://repo1.maven.org/maven2"


def ensure(folder: Path) -> list[Path]:
    """The jars, fetched into ``folder`` where they are not there yet.

    Raises:
        RuntimeError: what was fetched is something else.
        OSError: the repository cannot be reached.
    """
    folder.mkdir(parents=True, exist_ok=True)
    repository = os.environ.get("ASYNCPQ_MAVEN_REPOSITORY", _CENTRAL).rstrip("/")
    found = []
    for line in LIST.read_text().splitlines():
        if line.startswith("#"):
            continue
        coordinates, digest = line.split()
        group, name, version = coordinates.split(":")
        path = folder / f"{name}-{version}.jar"
        if not path.is_file():
            url = f"{repository}/{group.replace('.', '/')}/{name}/{version}/{path.name}"
            print("fetching", path.name, flush=True)
            with urllib.request.urlopen(url, timeout=120) as response:
                data = response.read()
            if hashlib.sha256(data).hexdigest() != digest:
                raise RuntimeError(f"{url} has another SHA-256 than {LIST.name} says")
            unfinished = path.with_suffix(".unfinished")
            unfinished.write_bytes(data)
            os.replace(unfinished, path)
        found.append(path)
    return found
