"""The time of a host and its device, of which the device's part is modelled and not waited for."""

from __future__ import annotations

import time


class DeviceClock:
    """The seconds in which one thread worked, and those in which it waited for a device.

    Time in which others had the processor does not count, so a busy machine gives the figures of one at rest. For one
    thread.
    """

    def __init__(self) -> None:
        self._waited = 0.0

    def now(self) -> float:
        return time.thread_time() + self._waited

    def wait_until(self, moment: float) -> None:
        self._waited += max(moment - self.now(), 0.0)


class RealClock:
    """The seconds that go by."""

    def now(self) -> float:
        return time.perf_counter()

    def wait_until(self, moment: float) -> None:
        if (left := moment - self.now()) > 0.0:
            time.sleep(left)
