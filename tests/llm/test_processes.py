"""Programs that use `LLM`: their imports, their end, and what happens after a fork."""

from __future__ import annotations

import subprocess
import sys

from tests.support.processes import ROOT

_OPEN = "from rnn_engine import LLM, SamplingParams\nllm = LLM(device='cpu', num_slots=2)\n"


def run(script: str) -> subprocess.CompletedProcess[str]:
    """Run a program with `script` as its text, to its end."""
    return subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_package_imports_nothing_until_a_name_is_used() -> None:
    done = run(
        "import sys, rnn_engine\nprint({'numpy', 'wgpu', 'aiohttp', 'pydantic', 'asyncio'} & set(sys.modules))\n"
        "from rnn_engine import LLM\nprint({'aiohttp', 'rich', 'prometheus_client'} & set(sys.modules))"
    )
    assert done.stdout == "set()\nset()\n", done.stderr


def test_a_program_that_does_not_close_its_model_ends() -> None:
    done = run(_OPEN + "print(llm.generate('Hello', SamplingParams(max_tokens=1)).completion_tokens)")
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


def test_a_program_ends_while_another_thread_generates() -> None:
    done = run(
        _OPEN + "import threading\n"
        "stream = llm.stream('Hello', SamplingParams(max_tokens=10**6, stop_token_ids=()))\n"
        "next(stream)\n"
        "threading.Thread(target=lambda: [None for _ in stream], daemon=True).start()\n"
        "next(iter(llm.stream('Hello')))\n"
    )
    assert done.returncode == 0, done.stderr


def test_a_forked_process_is_told_to_make_its_own() -> None:
    done = run(
        _OPEN + "import os, sys\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try:\n"
        "        llm.generate('Hello')\n"
        "    except Exception as error:\n"
        "        print(type(error).__name__, error, flush=True)\n"
        "    sys.exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)\n"
        "print(len(llm.generate(['Hello'] * 2, SamplingParams(max_tokens=1))))\n"
    )
    said = done.stdout.splitlines()
    assert said[0].startswith("EngineClosedError this LLM belongs to process "), done
    assert said[1:] == ["7", "2"], done
