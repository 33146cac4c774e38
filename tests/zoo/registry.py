"""The writers of the zoo. How to add one: README.md beside this file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.zoo.environments import (
    CargoEnvironment,
    Environment,
    GoEnvironment,
    MavenEnvironment,
    NpmEnvironment,
    PythonEnvironment,
)

PROGRAMS = Path(__file__).parent / "writers"


@dataclass(frozen=True, kw_only=True)
class Writer:
    """One version of one writer."""

    name: str
    version: str
    environment: Environment
    program: str  # a path below writers/

    @property
    def folder(self) -> str:
        """The name of its folders."""
        return f"{self.name}-{self.version}"


def _python(
    name: str, package: str, program: str, python: str, versions: str, *beside: str, from_source: str = ""
) -> tuple[Writer, ...]:
    """Writers that one package's versions are, with the packages that they need ``beside`` it."""
    return tuple(
        Writer(
            name=name,
            version=version,
            environment=PythonEnvironment(
                python=python, requirements=(f"{package}=={version}", *beside), from_source=from_source
            ),
            program=program,
        )
        for version in versions.split()
    )


_PYARROW = (
    *_python("pyarrow", "pyarrow", "pyarrow_files.py", "3.7", "0.17.1 1.0.1 2.0.0", "numpy<2"),
    *_python("pyarrow", "pyarrow", "pyarrow_files.py", "3.8", "3.0.0 4.0.1 5.0.0 6.0.1 7.0.0 8.0.0 9.0.0", "numpy<2"),
    *_python("pyarrow", "pyarrow", "pyarrow_files.py", "3.10", "10.0.1 11.0.0 12.0.1 14.0.2 15.0.2", "numpy<2"),
    *_python("pyarrow", "pyarrow", "pyarrow_files.py", "3.11", "16.1.0 18.1.0 20.0.0 22.0.0 24.0.0 26.0.1", "numpy"),
)
_PANDAS = (
    *_python("pandas", "pandas", "pandas_files.py", "3.8", "1.1.5", "pyarrow==2.0.0", "numpy<1.24"),
    *_python("pandas", "pandas", "pandas_files.py", "3.10", "1.5.3", "pyarrow==10.0.1", "numpy<2"),
    *_python("pandas", "pandas", "pandas_files.py", "3.11", "2.0.3", "pyarrow==14.0.2", "numpy<2"),
    *_python("pandas", "pandas", "pandas_files.py", "3.11", "2.3.3", "pyarrow==20.0.0"),
    *_python("pandas", "pandas", "pandas_files.py", "3.11", "3.1.1", "pyarrow==26.0.1"),
)
_FASTPARQUET = (
    *_python(
        "fastparquet",
        "fastparquet",
        "fastparquet_files.py",
        "3.8",
        "0.5.0",
        "pandas<1.3",
        "numpy<1.24",
        from_source="fastparquet,thrift",
    ),
    *_python(
        "fastparquet",
        "fastparquet",
        "fastparquet_files.py",
        "3.8",
        "0.6.0.post1 0.7.2",
        "pandas<1.3",
        "numpy<1.24",
        from_source="thrift",
    ),
    *_python("fastparquet", "fastparquet", "fastparquet_files.py", "3.9", "0.8.3 2022.12.0", "pandas<2", "numpy<2"),
    *_python(
        "fastparquet", "fastparquet", "fastparquet_files.py", "3.11", "2023.10.1 2024.11.0", "pandas<3", "numpy<2"
    ),
    *_python("fastparquet", "fastparquet", "fastparquet_files.py", "3.12", "2025.12.0 2026.9.0", "pandas<3"),
)
_POLARS = (
    *_python(
        "polars", "polars", "polars_files.py", "3.8", "0.16.18 0.17.15 0.18.15 0.19.19", "pyarrow==12.0.1", "numpy<2"
    ),
    *_python("polars", "polars", "polars_files.py", "3.10", "0.20.10 0.20.22 0.20.31", "pyarrow==15.0.2", "numpy<2"),
    *_python("polars", "polars", "polars_files.py", "3.11", "1.0.0 1.8.2 1.20.0 1.31.0", "pyarrow==18.1.0"),
    *_python("polars", "polars", "polars_files.py", "3.12", "1.44.2 2.1.0", "pyarrow==26.0.1"),
)
_DUCKDB = (
    *_python("duckdb", "duckdb", "duckdb_files.py", "3.8", "0.3.4 0.5.1 0.7.1", "pyarrow==8.0.0", "numpy<2"),
    *_python("duckdb", "duckdb", "duckdb_files.py", "3.10", "0.9.2 0.10.3 1.0.0", "pyarrow==15.0.2", "numpy<2"),
    *_python(
        "duckdb", "duckdb", "duckdb_files.py", "3.11", "1.1.3 1.2.2 1.3.2 1.4.5 1.5.6 2.0.0", "pyarrow==20.0.0", "pytz"
    ),
)
_DATAFUSION = (
    *_python("datafusion", "datafusion", "datafusion_files.py", "3.10", "28.0.0 33.0.0", "pyarrow==14.0.2", "numpy<2"),
    *_python("datafusion", "datafusion", "datafusion_files.py", "3.11", "38.0.1 43.1.0", "pyarrow==16.1.0", "numpy<2"),
    *_python(
        "datafusion", "datafusion", "datafusion_files.py", "3.11", "47.0.0 50.1.0 53.0.0 55.0.0", "pyarrow==22.0.0"
    ),
)
_DELTALAKE = (
    *_python("deltalake", "deltalake", "deltalake_files.py", "3.10", "0.8.1", "pyarrow==11.0.0", "numpy<2"),
    *_python("deltalake", "deltalake", "deltalake_files.py", "3.10", "0.10.2 0.12.0", "pyarrow==12.0.0", "numpy<2"),
    *_python("deltalake", "deltalake", "deltalake_files.py", "3.10", "0.14.0 0.15.3", "pyarrow==14.0.2", "numpy<2"),
    *_python("deltalake", "deltalake", "deltalake_files.py", "3.11", "0.17.4 0.19.2", "pyarrow==16.1.0", "numpy<2"),
    *_python("deltalake", "deltalake", "deltalake_files.py", "3.11", "0.22.3 0.25.5", "pyarrow==18.1.0"),
    *_python("deltalake", "deltalake", "deltalake_files.py", "3.11", "1.0.2 1.2.1 1.4.2 1.6.6", "pyarrow==22.0.0"),
)
_PYICEBERG = (
    *_python(
        "pyiceberg",
        "pyiceberg[sql-sqlite,pyarrow]",
        "pyiceberg_files.py",
        "3.10",
        "0.6.1",
        "pyarrow==15.0.2",
        "numpy<2",
    ),
    *_python(
        "pyiceberg", "pyiceberg[sql-sqlite]", "pyiceberg_files.py", "3.11", "0.7.1 0.8.1", "pyarrow==17.0.0", "numpy<2"
    ),
    *_python("pyiceberg", "pyiceberg[sql-sqlite]", "pyiceberg_files.py", "3.11", "0.9.1 0.10.0", "pyarrow==20.0.0"),
    *_python("pyiceberg", "pyiceberg[sql-sqlite]", "pyiceberg_files.py", "3.11", "0.11.1 0.12.0", "pyarrow==24.0.0"),
)
_CHDB = (
    *_python("chdb", "chdb", "chdb_files.py", "3.9", "0.15.0 1.4.1", "pyarrow==14.0.2", "numpy<2", "pandas<3"),
    *_python("chdb", "chdb", "chdb_files.py", "3.11", "2.1.1 3.1.2 3.7.2 4.4.0", "pyarrow==20.0.0", "pandas<3"),
)
_OTHERS = (
    *(
        writer
        for version in ("0.4.6", "0.5.1", "0.6.5", "0.8.2", "0.9.1")
        for writer in _python(
            "arro3-io", "arro3-io", "arro3_files.py", "3.11", version, f"arro3-core=={version}", "pyarrow==20.0.0"
        )
    ),
    *(
        Writer(
            name=name,
            version=version,
            environment=PythonEnvironment(
                python="3.11", requirements=(f"{name}=={version}", "pyarrow==26.0.1"), arguments=(name,)
            ),
            program="kuzu_files.py",
        )
        for name, version in (("kuzu", "0.11.3"), ("ladybug", "0.22.0"))
    ),
    *_python("deephaven", "deephaven-server", "deephaven_files.py", "3.11", "42.7"),
    *_python("daft", "getdaft", "daft_files.py", "3.10", "0.3.15", "pyarrow==17.0.0", "numpy<2"),
    *_python("daft", "daft", "daft_files.py", "3.11", "0.5.21 0.7.26", "pyarrow==20.0.0"),
)


def _java(version: str, name: str = "parquet-java", program: str = "java", main: str = "ParquetJava") -> Writer:
    environment = MavenEnvironment(version=version, main=main)
    return Writer(name=name, version=version, environment=environment, program=program)


def _spark(python: str, version: str, *beside: str) -> Writer:
    environment = PythonEnvironment(
        python=python, requirements=(f"pyspark=={version}", *beside), from_source="pyspark,py4j"
    )
    return Writer(name="spark", version=version, environment=environment, program="spark_files.py")


def _rust(version: str, *without: str) -> Writer:
    environment = CargoEnvironment(version=version, arguments=without)
    return Writer(name="parquet-rs", version=version, environment=environment, program="rust-parquet")


def _go(name: str, version: str, program: str, *, reads_tables: bool = False) -> Writer:
    environment = GoEnvironment(version=version, reads_tables=reads_tables)
    return Writer(name=name, version=version, environment=environment, program=program)


def _npm(package: str, version: str, program: str, *arguments: str) -> Writer:
    name = package.removeprefix("@").replace("/", "-")
    environment = NpmEnvironment(packages=(f"{package}@{version}",), arguments=arguments)
    return Writer(name=name, version=version, environment=environment, program=f"javascript/{program}")


def _wasm(version: str) -> Writer:
    environment = NpmEnvironment(packages=(f"parquet-wasm@{version}", "apache-arrow@21"), reads_tables=True)
    return Writer(name="parquet-wasm", version=version, environment=environment, program="javascript/wasm_files.mjs")


_NATIVE = (
    *(_java(version) for version in ["1.8.3", "1.9.0", "1.10.1", "1.11.1", "1.12.3", "1.13.1", "1.15.2", "1.18.1"]),
    *(_java(version, "parquet-protobuf", "java-protobuf", "ParquetProtobuf") for version in ("1.15.2", "1.17.0")),
    _spark("3.9", "3.3.4"),
    _spark("3.11", "3.5.9"),
    _spark("3.11", "4.3.0"),
    _rust("42.0.0", "v1-gzip-split"),
    *(_rust(version) for version in ("52.2.0", "55.2.0", "60.1.0")),
    Writer(name="parquet2", version="0.17.2", environment=CargoEnvironment(version="0.18.0"), program="rust-arrow2"),
    _go("arrow-go", "18.5.2", "go-arrow", reads_tables=True),
    _go("arrow-go", "18.8.0", "go-arrow", reads_tables=True),
    *(_go("parquet-go", version, "go-parquet") for version in ("0.23.0", "0.27.0", "0.32.0")),
    _go("xitongsys-parquet-go", "1.6.2", "go-xitongsys"),
    _go("fraugster-parquet-go", "0.12.0", "go-fraugster"),
    *(_npm("hyparquet-writer", version, "hyparquet_files.mjs") for version in ("0.6.1", "0.12.3", "0.17.0")),
    _npm("parquetjs", "0.11.2", "parquetjs_files.mjs", "parquetjs"),
    *(
        _npm(package, version, "parquetjs_files.mjs", package)
        for package, version in (("parquetjs-lite", "0.8.7"), ("parquets", "0.10.10"))
    ),
    _npm("@dsnp/parquetjs", "1.8.7", "parquetjs_files.mjs", "@dsnp/parquetjs"),
    _wasm("0.6.1"),
    _wasm("0.8.0"),
)

# Those of other languages stand in modules of their own, each with a tuple that is added here.
WRITERS: tuple[Writer, ...] = (
    *_PYARROW,
    *_PANDAS,
    *_FASTPARQUET,
    *_POLARS,
    *_DUCKDB,
    *_DATAFUSION,
    *_DELTALAKE,
    *_PYICEBERG,
    *_CHDB,
    *_OTHERS,
    *_NATIVE,
)
