"""Print constraints for pip: of each package that asyncpq or an extra names, the lowest version that it may have.

Where the developer's tools need a newer one, it is theirs.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[^]]*\])?>=([\w.]+)")


def constraints(path: Path) -> dict[str, str]:
    """Return the lowest version of each package."""
    with path.open("rb") as file:
        project = tomllib.load(file)["project"]
    extras = project["optional-dependencies"]
    tools = dict(REQUIREMENT.findall("\n".join(extras.pop("dev"))))
    shipped = [*project["dependencies"], *(text for extra in extras.values() for text in extra)]
    lowest: dict[str, str] = {}
    for name, version in REQUIREMENT.findall("\n".join(shipped)):
        versions = (version, tools.get(name, version), lowest.get(name, version))
        lowest[name] = max(versions, key=lambda version: [int(part) for part in re.findall(r"\d+", version)])
    return lowest


if __name__ == "__main__":
    for name, version in sorted(constraints(Path(sys.argv[1])).items()):
        sys.stdout.write(f"{name}=={version}\n")
