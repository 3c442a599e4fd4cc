"""Calls that end the process by abort(), as if from a native library: contained ones do not."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from rnn_engine.gpu.contained import contained
from tests.support.processes import ROOT

PROGRAM = """
import ctypes, threading
from rnn_engine.gpu.contained import AbortedError, call_on_aborted_thread, contained
abort = ctypes.CDLL(None).abort
for _ in range(3):
    try:
        contained(abort)
    except AbortedError:
        print("contained")
found = []
call_on_aborted_thread(lambda: found.append(threading.current_thread().name))
print(*found, contained(lambda: threading.current_thread().name), sep=", ", flush=True)
abort()
"""


def test_the_result_or_the_error_of_a_call_is_passed_on() -> None:
    assert contained(lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        contained(lambda: 1 // 0)
    assert contained(lambda: contained(lambda: 4)) == 4


@pytest.mark.skipif(sys.platform != "linux", reason="contains nothing elsewhere")
def test_the_process_outlives_an_abort_in_a_call_and_ends_by_one_elsewhere() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == 3 * "contained\n" + "rnn-engine device, rnn-engine device\n", done.stderr
    assert done.returncode == -signal.SIGABRT
