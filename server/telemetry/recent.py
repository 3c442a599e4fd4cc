"""How the last requests to the engines went."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from rnn_engine.telemetry import RequestReport
from server.doors.scopes import Principal, Scope
from server.telemetry.record import RequestRecord

_MOST = 128


@dataclass(frozen=True, slots=True)
class RecentReport:
    """How a request to an engine went, for which HTTP request, and whose that was."""

    request_id: str
    key: str | None
    report: RequestReport


class RecentReports:
    """Keeps the last ones. For the event loop."""

    def __init__(self) -> None:
        self._reports: deque[RecentReport] = deque(maxlen=_MOST)

    def add(self, record: RequestRecord) -> None:
        """Keep the reports of an HTTP request that has ended."""
        self._reports.extend(RecentReport(record.id, record.key, report) for report in record.reports)

    def seen_by(self, principal: Principal) -> Sequence[RecentReport]:
        """Return those that a client may see, its own or all, the latest last."""
        sees_all = principal.scope is Scope.ADMIN
        return [each for each in self._reports if sees_all or each.key == principal.name]
