"""Fail unless a wheel holds exactly the package: python check_wheel.py WHEEL PACKAGE_FOLDER."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path


def main(wheel: Path, package: Path) -> str | None:
    """Return what is wrong with the wheel, or None."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        shipped = {name for name in names if ".dist-info/" not in name}
        wanted = {
            f"{package.name}/{path.relative_to(package).as_posix()}"
            for path in package.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
        if shipped != wanted:
            return f"missing: {sorted(wanted - shipped)}; not wanted: {sorted(shipped - wanted)}"
        different = [name for name in wanted if archive.read(name) != (package.parent / name).read_bytes()]
        if different:
            return f"different content: {sorted(different)}"
        if f"{package.name}/py.typed" not in shipped:
            return "py.typed is missing: the types would not be seen"
        if not any(name.endswith(".dist-info/licenses/LICENSE") for name in names):
            return "LICENSE is missing"
    sys.stdout.write(f"{wheel.name}: {len(shipped)} files, exactly the package\n")
    return None


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
