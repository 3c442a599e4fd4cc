"""The time of a host and its device. The device's part is modelled, without real waiting."""

from __future__ import annotations

import time


class DeviceClock:
    """A clock of the seconds in which one thread worked, plus those in which it waited for a device.

    Time in which other threads had the processor does not count, so a busy machine gives the figures of an idle one.
    For one thread.
    """

    def __init__(self) -> None:
        self._waited = 0.0

    def now(self) -> float:
        return time.thread_time() + self._waited

    def wait_until(self, moment: float) -> None:
        self._waited += max(moment - self.now(), 0.0)


class RealClock:
    """A clock of real seconds."""

    def now(self) -> float:
        return time.perf_counter()

    def wait_until(self, moment: float) -> None:
        if (left := moment - self.now()) > 0.0:
            time.sleep(left)
