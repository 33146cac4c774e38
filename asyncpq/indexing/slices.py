"""Which files may match, and which of their rows: what every part says, and how that is put together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from asyncpq.planning.access_plan import AccessPlan
from asyncpq.pruning.row_ranges import RowRanges

_ALL = AccessPlan.all()


@dataclass(frozen=True, slots=True)
class Slices:
    """A superset of the rows that match, of files by their version ids.

    Attributes:
        files: ids of the files that may match.
        plans: of some of them, which rows may; of the others all may. None of them allows no row.
    """

    files: RowRanges
    plans: Mapping[int, AccessPlan] = field(default_factory=dict)

    @classmethod
    def none(cls) -> Slices:
        """No row of any file."""
        return _NONE

    @classmethod
    def of_plans(cls, plans: Mapping[int, AccessPlan]) -> Slices:
        """These rows, and no others."""
        some = {file: plan for file, plan in sorted(plans.items()) if not plan.is_none}
        narrow = {file: plan for file, plan in some.items() if not plan.is_all}
        return cls(RowRanges.from_rows(some), narrow)

    def plan(self, file: int) -> AccessPlan:
        """Rows of ``file`` that may match."""
        if file not in self.files:
            return AccessPlan.none()
        return self.plans.get(file, _ALL)

    def only(self, files: RowRanges) -> Slices:
        """What of it is in ``files``."""
        left = self.files & files
        if left.num_rows == self.files.num_rows:
            return self
        return Slices(left, {file: plan for file, plan in self.plans.items() if file in left})

    def __and__(self, other: Slices) -> Slices:
        files = self.files & other.files
        plans: dict[int, AccessPlan] = {}
        dropped: list[int] = []
        for file in {**self.plans, **other.plans}:
            if file in files:
                plan = self.plans.get(file, _ALL) & other.plans.get(file, _ALL)
                if plan.is_none:
                    dropped.append(file)
                elif not plan.is_all:
                    plans[file] = plan
        if dropped:
            files -= RowRanges.from_rows(sorted(dropped))
        return Slices(files, plans)

    def __or__(self, other: Slices) -> Slices:
        plans: dict[int, AccessPlan] = {}
        for mine, its in ((self, other), (other, self)):
            for file, plan in mine.plans.items():
                if file in its.plans:
                    either = plan | its.plans[file]
                    if not either.is_all:
                        plans[file] = either
                elif file not in its.files:
                    plans[file] = plan
        return Slices(self.files | other.files, plans)


_NONE = Slices(RowRanges.empty())
