"""`rnn-engine batch`: its files, its end after an interruption, and what it refuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from rnn_engine.cli.batch.running import LocalBatches
from rnn_engine.cli.session import EngineChoice
from rnn_engine.requests import GenerateRequest
from rnn_engine_server.store.folder import Store
from tests.support.cli import Command
from tests.support.fake_engine import FakeEngine
from tests.support.http import Body

Install = Callable[[FakeEngine], list[EngineChoice]]
URL = "/v1/completions"


def echo(request: GenerateRequest) -> str:
    return f" {bytes(token - 1 for token in request.prompt).decode()}!"


def line(custom_id: str, url: str = URL, **body: object) -> Body:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


LINES = [line(f"line {number}", prompt=f"{number}") for number in range(5)]
FAILING = line("fails", prompt="x", state="missing")


def write(path: Path, lines: Sequence[object]) -> Path:
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def read(path: Path) -> dict[str, Body]:
    """Return the lines of a file of results by their ids, after checking that none comes twice."""
    found = [json.loads(each) for each in path.read_text().splitlines()]
    assert len({each["custom_id"] for each in found}) == len(found)
    return {each["custom_id"]: each for each in found}


def texts(path: Path) -> dict[str, str]:
    return {name: each["response"]["body"]["choices"][0]["text"] for name, each in read(path).items()}


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "in.jsonl", LINES)


def test_a_file_is_run_here(rnn_engine: Command, install: Install, file: Path, output: Path) -> None:
    choices = install(FakeEngine(reply=echo))
    errors = output.with_name("out.errors.jsonl")
    errors.write_text("of an earlier run")
    said = rnn_engine("batch", "demo", file, "-o", output, "--slots", 3)
    assert said == f"5 of 5 requests are answered, in {output}; {errors} is of an earlier run\n"
    assert texts(output) == {f"line {number}": f" {number}!" for number in range(5)}
    assert sorted(path.name for path in output.parent.iterdir()) == ["in.jsonl", "out.errors.jsonl", "out.jsonl"]
    assert choices[0].slots == 3


def test_requests_that_fail_are_in_a_file_of_their_own(
    rnn_engine: Command, install: Install, tmp_path: Path, output: Path
) -> None:
    install(FakeEngine(reply=echo))
    file, errors = write(tmp_path / "in.jsonl", [*LINES, FAILING]), tmp_path / "wrong.jsonl"
    said = rnn_engine("batch", file, "-o", output, "--errors", errors, code=1)
    assert said == f"5 of 6 requests are answered, in {output}; 1 failed, in {errors}\n"
    [(name, failed)] = read(errors).items()
    assert (name, failed["response"]["status_code"]) == ("fails", 404)


def test_a_batch_that_was_interrupted_goes_on(
    rnn_engine: Command, install: Install, tmp_path: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "in.jsonl", [*LINES, line("long", prompt="a long prompt")])
    install(FakeEngine(reply=echo, hold=5, num_slots=8))

    def interrupted(self: LocalBatches) -> None:
        async def most_are_done() -> None:
            [batch] = await self._store.unfinished("")
            while self._store.shown(batch).completed < len(LINES):
                await asyncio.sleep(0)

        self._session.run(most_are_done())
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(LocalBatches, "wait", interrupted)
        said = rnn_engine("batch", file, "-o", output, code=130)
    assert "stopped; go on with: rnn-engine" in said
    assert "--resume" in said
    assert not output.exists()
    refused = rnn_engine("batch", file, "-o", output, code=2)
    assert "out.jsonl.batch is that of a batch that has not ended; go on with --resume, or delete it" in refused
    other = write(tmp_path / "other.jsonl", LINES)
    refused = rnn_engine("batch", other, "-o", output, "--resume", code=2)
    assert f"{other} is not the file of the batch in " in refused
    again = FakeEngine(reply=echo)
    install(again)
    rnn_engine("batch", file, "-o", output, "--resume")
    assert len(again.requests) == 1
    assert texts(output) == {"long": " a long prompt!"} | {f"line {number}": f" {number}!" for number in range(5)}
    assert not output.with_name("out.jsonl.batch").exists()


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "the first line is ''; expected an object with custom_id, method, url and body"),
        (["a"], "the first line is '\"a\"'; expected an object with"),
        ([line("a", "/v1/chat", prompt="a")], "url: '/v1/chat' is not allowed; expected one of /v1/chat/completions, "),
    ],
)
def test_a_file_without_requests_is_refused(
    rnn_engine: Command, install: Install, tmp_path: Path, output: Path, lines: Sequence[object], words: str
) -> None:
    install(FakeEngine(reply=echo))
    file = write(tmp_path / "in.jsonl", lines)
    assert words in rnn_engine("batch", file, "-o", output, code=2)
    assert list(tmp_path.iterdir()) == [file]


def test_lines_that_are_wrong_are_listed_and_nothing_is_run(
    rnn_engine: Command, install: Install, tmp_path: Path, output: Path
) -> None:
    engine = FakeEngine(reply=echo)
    install(engine)
    file = write(tmp_path / "in.jsonl", [*LINES, line("line 0", prompt="a"), *(line(f"{n}") for n in range(30))])
    output.write_text("of an earlier run")
    said = rnn_engine("batch", file, "-o", output, code=1)
    assert f"Error: {file} has requests that can't be run:\n  line 6: custom_id: 'line 0' is not allowed" in said
    assert "\n  line 7: body: prompt: the field is required" in said
    assert said.endswith("\n  and 11 more\n")
    assert engine.requests == []
    assert output.read_text() == "of an earlier run"
    assert not output.with_name("out.jsonl.batch").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Missing option '-o' / '--output'"),
        (["-o", "a"], "0 arguments; expected FILE, or MODEL and FILE"),
        (["a", "b", "c", "-o", "a"], "3 arguments; expected FILE, or MODEL and FILE"),
    ],
)
def test_refusals(rnn_engine: Command, arguments: list[str], words: str) -> None:
    assert words in " ".join(rnn_engine("batch", *arguments, code=2).split())


def test_there_is_nothing_to_go_on_with(rnn_engine: Command, file: Path, output: Path) -> None:
    folder = output.with_name("out.jsonl.batch")
    said = rnn_engine("batch", file, "-o", output, "--resume", code=2)
    assert f"--resume goes on from {folder}, which does not exist" in said
    folder.mkdir()
    said = rnn_engine("batch", file, "-o", output, "--resume", code=2)
    assert f"{folder} has no batch to go on with; delete it, and leave --resume out" in said


async def store_batch(store: Store, file: Path) -> None:
    async with store.files.create("") as new:
        await new.write(file.read_bytes())
        new.describe("in.jsonl", "batch", None)
    assert new.stored is not None
    await store.batches.create("", URL, new.stored.id, "30d")


def test_a_process_that_was_killed_before_the_batch_began_leaves_nothing_that_matters(
    rnn_engine: Command, install: Install, file: Path, output: Path
) -> None:
    folder = output.with_name("out.jsonl.batch")
    for resume in ([], ["--resume"]):
        engine = FakeEngine(reply=echo)
        install(engine)
        store = Store(folder)
        asyncio.run(store_batch(store, file))
        used = rnn_engine("batch", file, "-o", output, *resume, code=2)
        assert f"{folder} is in use by another process" in used
        store.close()
        rnn_engine("batch", file, "-o", output, *resume)
        assert len(engine.requests) == len(LINES)
        assert len(texts(output)) == len(LINES)
        assert not folder.exists()
