"""Scans, joins, index builds and writes of any distributed engine, in tasks: small, picklable, without a session.

A scan: :func:`plan_scan` prunes a dataset's files and pages and packs the rest into a :class:`ScanTasks`; each
:class:`ScanTask` reads its rows in any process. Tasks of a process share a session (``worker_sessions``). An engine
with rules of its own for names and types, such as Spark, gives :func:`plan_tasks` an :class:`EngineDataset` and an
:class:`EngineScan`.

The way of a scan: ``scan_planning`` opens what must be opened, and says which rows and metadata of a file a task gets,
``packing`` groups files into tasks, ``scan_tasks`` encodes and reads them; ``engine_scans`` and ``footers`` are
for an engine's rules. :func:`build_index` runs the steps of ``build_steps`` as the tasks of
``build_tasks``; :func:`plan_write` returns a :class:`LakeWrite`, with which tasks write and the planner commits, and
:func:`plan_optimize` sorts the rows of a dataset for one (``rewrites``). :func:`plan_join` makes a :class:`JoinTask`
that looks up keys; :class:`NewFiles` follows a folder in batches.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from asyncpq.distributed.build_steps import BuildStep as BuildStep
    from asyncpq.distributed.build_tasks import BuildSteps as BuildSteps
    from asyncpq.distributed.build_tasks import BuildTask as BuildTask
    from asyncpq.distributed.build_tasks import build_in_steps as build_in_steps
    from asyncpq.distributed.build_tasks import build_index as build_index
    from asyncpq.distributed.build_tasks import refresh_in_steps as refresh_in_steps
    from asyncpq.distributed.engine_scans import EngineDataset as EngineDataset
    from asyncpq.distributed.engine_scans import EngineFiles as EngineFiles
    from asyncpq.distributed.engine_scans import EngineRules as EngineRules
    from asyncpq.distributed.engine_scans import EngineScan as EngineScan
    from asyncpq.distributed.footers import FooterFacts as FooterFacts
    from asyncpq.distributed.footers import SchemaNode as SchemaNode
    from asyncpq.distributed.join_planning import DatasetJoin as DatasetJoin
    from asyncpq.distributed.join_planning import FoundFiles as FoundFiles
    from asyncpq.distributed.join_planning import plan_join as plan_join
    from asyncpq.distributed.join_tasks import JoinKey as JoinKey
    from asyncpq.distributed.join_tasks import JoinTask as JoinTask
    from asyncpq.distributed.lake_writes import LakeWrite as LakeWrite
    from asyncpq.distributed.lake_writes import SourceFiles as SourceFiles
    from asyncpq.distributed.lake_writes import WrittenPart as WrittenPart
    from asyncpq.distributed.lake_writes import plan_write as plan_write
    from asyncpq.distributed.lake_writes import vacuum_lake as vacuum_lake
    from asyncpq.distributed.new_files import NewFiles as NewFiles
    from asyncpq.distributed.rewrites import plan_optimize as plan_optimize
    from asyncpq.distributed.row_order import ZOrder as ZOrder
    from asyncpq.distributed.scan_planning import PlannedChunk as PlannedChunk
    from asyncpq.distributed.scan_planning import PlanningJobs as PlanningJobs
    from asyncpq.distributed.scan_planning import ScanTask as ScanTask
    from asyncpq.distributed.scan_planning import ScanTasks as ScanTasks
    from asyncpq.distributed.scan_planning import plan_scan as plan_scan
    from asyncpq.distributed.scan_planning import plan_tasks as plan_tasks
    from asyncpq.distributed.scan_tasks import TaskScan as TaskScan
    from asyncpq.distributed.scan_tasks import read_task as read_task
    from asyncpq.distributed.worker_sessions import WorkerOptions as WorkerOptions
    from asyncpq.distributed.worker_sessions import WorkerSettings as WorkerSettings
    from asyncpq.distributed.worker_sessions import close_workers as close_workers
    from asyncpq.distributed.worker_sessions import refresh_hint as refresh_hint
    from asyncpq.distributed.worker_sessions import run_on_worker as run_on_worker
    from asyncpq.distributed.worker_sessions import worker_counts as worker_counts

_NAMES: Final = {
    "build_steps": ("BuildStep",),
    "build_tasks": ("BuildSteps", "BuildTask", "build_in_steps", "build_index", "refresh_in_steps"),
    "engine_scans": ("EngineDataset", "EngineFiles", "EngineRules", "EngineScan"),
    "footers": ("FooterFacts", "SchemaNode"),
    "join_planning": ("DatasetJoin", "FoundFiles", "plan_join"),
    "join_tasks": ("JoinKey", "JoinTask"),
    "lake_writes": ("LakeWrite", "SourceFiles", "WrittenPart", "plan_write", "vacuum_lake"),
    "new_files": ("NewFiles",),
    "rewrites": ("plan_optimize",),
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
    "SourceFiles",
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
