"""Every package that asyncpq imports is declared in pyproject.toml, and in the conda recipe, as one of its own."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import asyncpq

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path(asyncpq.__file__).parent
#: Functions that import the module that their first argument names.
IMPORTERS = frozenset({"__import__", "import_module", "import_whole", "load"})


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes of the code that runs."""
    for node in ast.iter_child_nodes(tree):
        if not _is_type_checking(node):
            yield node
            yield from _nodes(node)


def _modules(tree: ast.AST) -> Iterator[str]:
    for node in _nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in IMPORTERS and isinstance(node.args[0].value, str):
                yield node.args[0].value


def imported() -> dict[str, list[str]]:
    """The files that import each top-level module which is neither Python's nor asyncpq's."""
    found: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for module in _modules(ast.parse(path.read_text(encoding="utf-8"))):
            top = module.partition(".")[0]
            if top not in sys.stdlib_module_names and top != "asyncpq":
                found.setdefault(top, []).append(path.relative_to(PACKAGE).as_posix())
    return found


def _project() -> dict[str, list[str]]:
    """The requirements by extra; those that are always installed have the extra ""."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    return {"": project["dependencies"], **{name: extra for name, extra in extras.items() if name != "dev"}}


def _name(requirement: str) -> str:
    match = re.match(r"[\w.-]+", requirement)
    assert match is not None
    return re.sub(r"[-_.]+", "-", match[0]).lower()


#: Packages that come with a filesystem which a user has installed: google-auth, with gcsfs.
BROUGHT = frozenset({"google"})


@pytest.mark.heavy
def test_every_imported_package_is_declared() -> None:
    declared = {_name(requirement) for extra in _project().values() for requirement in extra}
    packages = packages_distributions()
    missing = {
        module: files
        for module, files in imported().items()
        if module not in BROUGHT and not declared & {_name(name) for name in packages.get(module, [module])}
    }
    assert missing == {}


def test_the_search_finds_lazy_imports() -> None:
    code = "def f():\n    import a.b\n    from c import d\n    import_whole('e.f')\n    x.load('g')\n"
    code += "if TYPE_CHECKING:\n    import h\n"
    assert set(_modules(ast.parse(code))) == {"a.b", "c", "e.f", "g"}


def test_the_conda_recipe_has_the_same_dependencies() -> None:
    recipe = (ROOT / "conda" / "recipe.yaml").read_text(encoding="utf-8")
    run = recipe.partition("\n  run:\n")[2].partition("\n\n")[0].splitlines()
    declared = [line.strip().removeprefix("- ").replace(" ", "") for line in run if "python" not in line.split()[1:2]]
    assert declared == _project()[""]
