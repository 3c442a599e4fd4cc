"""LoRAs that are served without being merged: as states under names, beside each other, over the real engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from rnn_engine.cli.session import EngineChoice, load_engine
from rnn_engine.demo import model_path
from rnn_engine.errors import InvalidRequestError, StateError
from rnn_engine.interface import EngineLike
from rnn_engine.loading.runner import open_model
from rnn_engine.loading.settings import StateFile, StateSettings
from rnn_engine.model import LoraChoice
from rnn_engine.model.lora import projection, write_lora
from rnn_engine.requests import GenerateRequest, MixedState, StateMix
from rnn_engine_server.apis.engine.states import CreatedState
from rnn_engine_server.apis.openai.schemas import Completion
from tests.support.demo_server import demo_choice
from tests.support.http import Client, Load, client_over, post
from tests.support.loras import draw, save_ai00, save_peft

RANK, ALPHA = 3, 6.0
PROMPT = "User: What is the capital of France?\n\nAssistant:"


@cache
def pairs(seed: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return a random LoRA of the demo model, by the names of modules."""
    with open_model(model_path()) as model:
        shapes = {name: info.shape for name, info in model.tensors.items() if projection(name) is not None}
    return {
        name.removesuffix(".weight"): (draw(seed + number, RANK, shape[1]), 30 * draw(seed * number, shape[0], RANK))
        for number, (name, shape) in enumerate(shapes.items(), 1000)
    }


def save(path: Path, seed: int, metadata: Mapping[str, str] | None = None) -> Path:
    halves = {f"{name}.lora_{half}": pair["AB".index(half)] for name, pair in pairs(seed).items() for half in "AB"}
    write_lora(path, halves, ALPHA, metadata or {})
    return path


def choice_with(*files: StateFile, folder: Path | None = None, max_loras: int = 1, rank: int = RANK) -> EngineChoice:
    choice = demo_choice(3, states=StateSettings(files, folder=folder))
    return replace(choice, loading=replace(choice.loading, max_loras=max_loras, max_lora_rank=rank))


@pytest.fixture
async def client(load: Load, tmp_path: Path) -> AsyncIterator[Client]:
    files = [StateFile(save(tmp_path / f"{name}.safetensors", seed), name) for seed, name in enumerate("ab", 1)]
    async with client_over(await load(choice_with(*files, folder=tmp_path / "states"))) as client:
        yield client


async def complete(client: Client, model: str, **fields: object) -> str:
    body = {"model": model, "prompt": PROMPT, "max_tokens": 8, "temperature": 0, **fields}
    text: str = (await post(client, "/v1/completions", Completion, body))["choices"][0]["text"]
    return text


async def merged(load: Load, path: Path) -> str:
    """Return the answer of the demo model with the LoRA merged."""
    choice = demo_choice(1)
    loading = replace(choice.loading, loras=[LoraChoice.parse(str(path))])
    async with client_over(await load(replace(choice, loading=loading))) as client:
        return await complete(client, "demo")


async def test_each_model_name_answers_with_its_own_lora(client: Client, load: Load, tmp_path: Path) -> None:
    expected = {f"demo:{name}": await merged(load, tmp_path / f"{name}.safetensors") for name in "ab"}
    expected["demo"] = await complete(client, "demo")
    assert len(set(expected.values())) == 3
    names = [name for _ in range(3) for name in expected]  # more LoRAs than places, and more requests than slots
    assert await asyncio.gather(*(complete(client, name) for name in names)) == [expected[name] for name in names]


async def test_a_lora_is_uploaded_and_deleted_while_the_server_runs(client: Client, tmp_path: Path) -> None:
    content = (tmp_path / "a.safetensors").read_bytes()
    put = await client.put("/v1/states/mine", data=content)
    assert (put.status, (await put.json())["form"]) == (200, "lora")
    assert await complete(client, "demo:mine") == await complete(client, "demo:a")
    assert (await client.delete("/v1/states/mine")).status == 200
    missing = await client.post("/v1/completions", json={"model": "demo:mine", "prompt": "a"})
    assert missing.status == 404


async def test_a_state_keeps_the_lora_with_which_it_was_made(load: Load, tmp_path: Path) -> None:
    choice = choice_with(StateFile(save(tmp_path / "a.safetensors", 1), "a"), folder=tmp_path / "states")
    async with client_over(await load(choice)) as client:
        body = {"name": "read", "state": "a", "prompt": PROMPT, "persistent": True}
        await post(client, "/v1/states", CreatedState, body)
        expected = await complete(client, "demo:a")
        assert await complete(client, "demo:read", prompt="") == expected
        exported = await client.get("/v1/states/read/export", params={"form": "tuned"})
        assert (exported.status, "LoRA" in await exported.text()) == (400, True)
        whole = await (await client.get("/v1/states/read/export")).read()
    async with client_over(await load(replace(choice, states=replace(choice.states, files=())))) as client:
        assert await complete(client, "demo:read", prompt="") == expected  # from its file
        copy = await client.put("/v1/states/copy", data=whole)
        assert copy.status == 200
        assert await complete(client, "demo:copy", prompt="") == expected


@pytest.mark.parametrize("form", ["ai00", "peft", "pth"])
async def test_every_form_of_a_lora_is_read(load: Load, tmp_path: Path, form: str) -> None:
    match form:
        case "ai00":
            text = f"{save_ai00(pairs(1), tmp_path / 'a.st')}:{ALPHA}"
        case "peft":
            text = str(save_peft(pairs(1), tmp_path / "peft", {"r": RANK, "lora_alpha": ALPHA}))
        case _:
            text = f"{save(tmp_path / 'a.pth', 1)}:{ALPHA}"
    async with client_over(await load(choice_with(StateFile(Path(text), "a")))) as client:
        assert await complete(client, "demo:a") == await merged(load, save(tmp_path / "own.safetensors", 1))


@pytest.mark.parametrize(
    ("max_loras", "rank", "metadata", "message"),
    [
        (0, RANK, {}, "a.safetensors: it has a LoRA, and there is no room for one; expected --max-loras 1 or more"),
        (1, 2, {}, "a.safetensors: its LoRA has the rank 3; expected at most 2, or a greater --max-lora-rank"),
        (1, RANK, {"rnn_engine_model": "v7-another"}, "belongs to model v7-another; the loaded model is"),
    ],
)
async def test_a_lora_without_room_is_refused_at_the_start(
    tmp_path: Path, max_loras: int, rank: int, metadata: dict[str, str], message: str
) -> None:
    file = StateFile(save(tmp_path / "a.safetensors", 1, metadata), "a")
    with pytest.raises(StateError, match=message):
        await load_engine(choice_with(file, max_loras=max_loras, rank=rank))


async def test_a_lora_that_also_changes_other_tensors_is_merged_only(tmp_path: Path) -> None:
    changed = {**pairs(1), "emb": (draw(1, RANK, 192), draw(2, 512, RANK))}
    with open_model(model_path()) as model:
        rows, columns = model.tensors["emb.weight"].shape
    changed["emb"] = draw(1, RANK, columns), draw(2, rows, RANK)
    path = save_ai00(changed, tmp_path / "a.st")
    with pytest.raises(
        StateError, match=r"a.st: it changes emb.weight; expected only pairs for projections, or --lora"
    ):
        await load_engine(choice_with(StateFile(Path(f"{path}:6"), "a")))


async def test_a_request_may_not_mix_more_loras_than_there_are_places(engine_of_two: EngineLike) -> None:
    first, second = [(await engine_of_two.states.get(name)).frozen.for_request for name in "ab"]
    request = GenerateRequest([1], initial_state=first, mix=StateMix(1.0, [MixedState(1.0, second)]))
    with pytest.raises(InvalidRequestError, match="it mixes 2 LoRAs; expected at most 1"):
        engine_of_two.generate(request)


@pytest.fixture
async def engine_of_two(load: Load, tmp_path: Path) -> EngineLike:
    files = [StateFile(save(tmp_path / f"{name}.safetensors", seed), name) for seed, name in enumerate("ab", 1)]
    return await load(choice_with(*files))
