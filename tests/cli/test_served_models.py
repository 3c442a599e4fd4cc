"""The models of `rnn-engine serve`: their names, and the settings that each is loaded with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import click
import pytest

from rnn_engine.cli.serve import NamedModel
from rnn_engine.cli.serving import load_models
from rnn_engine.cli.session import EngineChoice, load_engine
from rnn_engine.demo import model_path
from rnn_engine.errors import InvalidRequestError
from rnn_engine.loading.settings import LoadSettings, StateSettings
from rnn_engine_server.core.app import ModelRegistry
from rnn_engine_states.cache.config import CacheConfig, DiskConfig
from tests.support.cli import Command
from tests.support.retrieval import EMBEDDING, RERANKER


def choice(path: Path, folder: Path | None = None) -> EngineChoice:
    if folder is None:
        return EngineChoice(path, LoadSettings("cpu", "none"), 2)
    cache = CacheConfig(disk=DiskConfig(folder / "cache"))
    return EngineChoice(path, LoadSettings("cpu", "none"), 2, cache, StateSettings(folder=folder / "states"))


@asynccontextmanager
async def loaded(choice: EngineChoice, *models: NamedModel, default: str | None = None) -> AsyncIterator[ModelRegistry]:
    registry = await load_models(choice, models, default, load_engine)
    try:
        yield registry
    finally:
        await registry.close()


def test_names(model_file: Path, tmp_path: Path) -> None:
    assert NamedModel.parse(None) == NamedModel("demo", model_path())
    assert NamedModel.parse(str(model_file)) == NamedModel("tiny", model_file)
    assert NamedModel.parse(f"my model={model_file}") == NamedModel("my model", model_file)
    odd = tmp_path / "a=b"
    odd.write_bytes(b"")
    assert NamedModel.parse(str(odd)) == NamedModel("a=b", odd)
    for name in ("", "\n", "x" * 129):
        with pytest.raises(click.BadParameter, match="expected a name of 1 to 128 printable characters before the ="):
            NamedModel.parse(f"{name}={model_file}")


def test_two_of_one_name(rnn_engine: Command, model_file: Path) -> None:
    said = rnn_engine("serve", model_file, model_file, code=2)
    assert "two models are called 'tiny'; give one of them another name as NAME=FILE" in said


async def test_each_has_its_name_and_its_folders(model_file: Path, tmp_path: Path) -> None:
    models = NamedModel("one", model_file), NamedModel("the two", model_file)
    async with loaded(choice(model_file, tmp_path), *models, default="the two") as registry:
        assert [info.model for info in registry.infos()] == ["the two", "one"]
        assert [dict(info.folders) for info in registry.infos()] == [
            {"cache": tmp_path / "cache" / "model-the_two", "states": tmp_path / "states" / "model-the_two"},
            {"cache": tmp_path / "cache", "states": tmp_path / "states"},
        ]


async def test_a_model_is_loaded_again_with_what_it_kept(model_file: Path, tmp_path: Path) -> None:
    async with loaded(choice(model_file, tmp_path), NamedModel("one", model_file)) as registry:
        first = registry.default.engine
        await registry.default.unload(withdraw=False)
        assert await registry.default.load() is not first


async def test_a_default_that_there_is_not(model_file: Path) -> None:
    with pytest.raises(InvalidRequestError, match="--default-model: no model is called 'two'; there are: one"):
        await load_models(choice(model_file), [NamedModel("one", model_file)], "two", load_engine)


async def test_a_reranker_is_for_the_first_model(model_file: Path) -> None:
    settings = EngineChoice(EMBEDDING, LoadSettings("cpu", "none", reranker=RERANKER), 2)
    async with loaded(settings, NamedModel("vectors", EMBEDDING), NamedModel("two", model_file)) as registry:
        vectors, other = registry.infos()
        assert vectors.embedding is not None
        assert vectors.embedding.reranker == "reranker"
        assert other.embedding is None
        assert next(model for model in registry if model.name == "vectors").order.uses(RERANKER)
