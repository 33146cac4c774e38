"""Scans, joins, index builds and writes for any distributed engine, in tasks: small, picklable, without a session. The
planner is the process that plans tasks and commits their results; workers run the tasks.

A scan: :func:`plan_scan` prunes a dataset's files and pages and packs the rest into a :class:`ScanTasks`; each
:class:`ScanTask` reads its rows in any process. Tasks of a process share a session (``worker_sessions``). An engine
with rules of its own for names and types, such as Spark, gives :func:`plan_tasks` an :class:`EngineDataset` and an
:class:`EngineScan`.

Modules of a scan: ``scan_planning`` opens files and chooses the rows and metadata that tasks get, ``packing`` groups
files into tasks, ``scan_tasks`` encodes and reads them; ``engine_scans`` and ``footers`` are for an engine's rules.
:func:`build_index` runs the steps of ``build_steps`` as the tasks of ``build_tasks``; :func:`plan_write` returns a
:class:`LakeWrite`, with which tasks write and the planner commits, and :func:`plan_optimize` sorts the rows of a
dataset for one (``optimize``). :func:`plan_join` makes a :class:`JoinTask` that looks up keys; :class:`NewFiles`
follows a folder in batches.

Attributes:
    BuildTask: a task of a build, which :func:`build_index` passes to its ``run``. Picklable. A worker calls its method
        ``run()``, whose result is sent back to the planner.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from asyncpq.distributed.build_steps import BuildStep
    from asyncpq.distributed.build_tasks import BuildSteps, BuildTask, build_in_steps, build_index, refresh_in_steps
    from asyncpq.distributed.engine_scans import EngineDataset, EngineFiles, EngineRules, EngineScan
    from asyncpq.distributed.footers import FooterFacts, SchemaNode
    from asyncpq.distributed.join_planning import DatasetJoin, FoundFiles, plan_join
    from asyncpq.distributed.join_tasks import JoinKey, JoinTask
    from asyncpq.distributed.lake_writes import LakeWrite, WrittenPart, plan_write, timed, vacuum_lake
    from asyncpq.distributed.new_files import NewFiles
    from asyncpq.distributed.optimize import plan_optimize
    from asyncpq.distributed.row_order import ZOrder
    from asyncpq.distributed.scan_planning import PlannedChunk, PlanningJobs, ScanTask, ScanTasks, plan_scan, plan_tasks
    from asyncpq.distributed.scan_tasks import TaskScan, read_task
    from asyncpq.distributed.worker_sessions import (
        WorkerOptions,
        WorkerSettings,
        close_workers,
        refresh_hint,
        run_on_worker,
        worker_counts,
    )

_NAMES: Final = {
    "build_steps": ("BuildStep",),
    "build_tasks": ("BuildSteps", "BuildTask", "build_in_steps", "build_index", "refresh_in_steps"),
    "engine_scans": ("EngineDataset", "EngineFiles", "EngineRules", "EngineScan"),
    "footers": ("FooterFacts", "SchemaNode"),
    "join_planning": ("DatasetJoin", "FoundFiles", "plan_join"),
    "join_tasks": ("JoinKey", "JoinTask"),
    "lake_writes": ("LakeWrite", "WrittenPart", "plan_write", "timed", "vacuum_lake"),
    "new_files": ("NewFiles",),
    "optimize": ("plan_optimize",),
    "row_order": ("ZOrder",),
    "scan_planning": ("PlannedChunk", "PlanningJobs", "ScanTask", "ScanTasks", "plan_scan", "plan_tasks"),
    "scan_tasks": ("TaskScan", "read_task"),
    "worker_sessions": (
        "WorkerOptions",
        "WorkerSettings",
        "close_workers",
        "refresh_hint",
        "run_on_worker",
        "worker_counts",
    ),
}

__all__ = [
    "BuildStep",
    "BuildSteps",
    "BuildTask",
    "DatasetJoin",
    "EngineDataset",
    "EngineFiles",
    "EngineRules",
    "EngineScan",
    "FooterFacts",
    "FoundFiles",
    "JoinKey",
    "JoinTask",
    "LakeWrite",
    "NewFiles",
    "PlannedChunk",
    "PlanningJobs",
    "ScanTask",
    "ScanTasks",
    "SchemaNode",
    "TaskScan",
    "WorkerOptions",
    "WorkerSettings",
    "WrittenPart",
    "ZOrder",
    "build_in_steps",
    "build_index",
    "close_workers",
    "plan_join",
    "plan_optimize",
    "plan_scan",
    "plan_tasks",
    "plan_write",
    "read_task",
    "refresh_hint",
    "refresh_in_steps",
    "run_on_worker",
    "timed",
    "vacuum_lake",
    "worker_counts",
]


def __getattr__(name: str) -> Any:
    for module, names in _NAMES.items():
        if name in names:
            value = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
