"""llama-server's own routes beside /completion."""

from __future__ import annotations

from pathlib import Path

import pytest

from rnn_engine.chat_template import WorldTemplate
from rnn_engine.cli.session import load_engine
from rnn_engine.loading.settings import StateSettings
from rnn_engine.model import LoraChoice
from rnn_engine.telemetry import SlotUse
from rnn_engine_server.apis.engine.status import Props
from rnn_engine_server.apis.engine.tokens import Text, TokenizerInfo, Tokens
from rnn_engine_server.apis.llama_server.slots import LoraAdapter, SlotAction, SlotEntry
from rnn_engine_server.apis.openai.chat import AppliedTemplate
from rnn_engine_server.core.kept import BoundedStore, KeptUsage
from rnn_engine_states.files.reading import LoadedState
from tests.support.demo_server import demo_choice
from tests.support.fake_engine import FakeEngine, encode, state_after
from tests.support.http import AT_ONCE, Body, Client, Serve, check_shape, client_over, error_of, post


def held(*slots: int) -> list[SlotUse]:
    """Return uses of these slots by one request, which mixes states if there are several."""
    return [SlotUse(slot, 1, "", False, 2, 0, 2, 0, 5) for slot in slots]


@AT_ONCE
async def test_slots_tell_which_are_taken(serve: Serve) -> None:
    engine = FakeEngine(num_slots=3)
    engine.active, engine.slots_held = 1, held(0, 2)
    client = await serve(engine)
    entries = await (await client.get("/slots")).json()
    for entry in entries:
        check_shape(SlotEntry, entry)
    assert [(entry["id"], entry["is_processing"]) for entry in entries] == [(0, True), (1, False), (2, True)]
    assert (await client.get("/slots?fail_on_no_slot=1")).status == 200
    engine.slots_held = held(0, 1, 2)
    await error_of(await client.get("/slots?fail_on_no_slot=1"), 503)
    await error_of(await client.get("/slots?fail_on_no_slot=2"), 400)


@AT_ONCE
@pytest.mark.parametrize("max_draft", [0, 16])
async def test_slots_tell_whether_answers_are_drafted(serve: Serve, max_draft: int) -> None:
    client = await serve(FakeEngine(num_slots=2, max_draft=max_draft))
    entries = await (await client.get("/slots")).json()
    assert [entry["speculative"] for entry in entries] == [max_draft > 0] * 2


async def test_loras_are_those_that_are_merged(serve: Serve) -> None:
    client = await serve(FakeEngine(loras=(LoraChoice(Path("folder/lora.st"), 32.0),)))
    [entry] = await (await client.get("/lora-adapters")).json()
    check_shape(LoraAdapter, entry)
    assert entry == {"id": 0, "path": "lora.st", "scale": 1.0, "alpha": 32.0}
    error = await error_of(await client.post("/lora-adapters", json=[{"id": 0, "scale": 0.5}]), 501)
    assert "merged" in error["message"]


async def test_props(serve: Serve) -> None:
    answer = await (await (await serve(FakeEngine())).get("/props")).json()
    check_shape(Props, answer)
    assert (answer["model_alias"], answer["total_slots"]) == ("fake", 2)
    assert answer["chat_template"] == WorldTemplate().as_jinja
    assert answer["default_generation_settings"]["n_ctx"] == answer["limits"]["max_prompt_tokens"]


async def test_template_is_applied_without_running_the_model(serve: Serve) -> None:
    engine = FakeEngine()
    body: Body = {"messages": [{"role": "user", "content": "Hi"}]}
    answer = await post(await serve(engine), "/apply-template", AppliedTemplate, body)
    assert answer == {"prompt": "User: Hi\n\nAssistant:"}
    assert not engine.requests


async def test_tokens_with_their_pieces(serve: Serve) -> None:
    client = await serve(FakeEngine())
    answer = await post(client, "/tokenize", Tokens, {"content": "hé", "with_pieces": True})
    pieces: list[str | list[int]] = ["h", [195], [169]]
    assert answer["tokens"] == [
        {"id": token, "piece": piece} for token, piece in zip(encode("hé"), pieces, strict=True)
    ]
    strings = await post(client, "/v1/tokenize", Tokens, {"prompt": "hi", "return_token_strs": True})
    assert strings["token_strs"] == ["h", "i"]


def make_default(engine: FakeEngine, seed: int) -> str:
    """Make some state the default one; return its digest."""
    entry = engine.named.add(LoadedState("full", state_after([seed])), f"default-{seed}", "test")
    engine.named.set_default(entry.name)
    return entry.frozen.digest


class TestSlotActions:
    async def act(self, client: Client, action: str, slot: int = 1, **body: object) -> Body:
        return await post(client, f"/slots/{slot}?action={action}", SlotAction, body)

    @pytest.mark.parametrize(
        ("path", "body", "tokens"),
        [
            ("/completion", {"prompt": "ab"}, encode("ab")),
            (
                "/v1/chat/completions",
                {"messages": [{"role": "user", "content": "Hi"}]},
                encode("User: Hi\n\nAssistant:"),
            ),
        ],
    )
    async def test_the_last_prompt_of_a_slot_is_saved_and_restored(
        self, serve: Serve, path: str, body: Body, tokens: list[int]
    ) -> None:
        engine = FakeEngine(num_slots=2)
        client = await serve(engine)
        await client.post(path, json={**body, "id_slot": 1})
        saved = await self.act(client, "save", filename="slot1.bin")
        assert (saved["id_slot"], saved["filename"], saved["n_saved"]) == (1, "slot1.bin", len(tokens))
        entry = await (await client.get("/v1/states/slot1.bin")).json()
        assert (entry["name"], list(engine.requests[-1].prompt)) == ("slot1.bin", tokens)
        restored = await self.act(client, "restore", 0, filename="slot1.bin")
        assert (restored["n_restored"], restored["n_read"]) == (len(tokens), saved["n_written"])
        assert list(engine.requests[-1].prompt) == tokens
        assert await self.act(client, "erase", 0) == {"id_slot": 0, "n_erased": len(tokens)}
        error = await error_of(await client.post("/slots/0?action=save", json={"filename": "a"}), 400)
        assert error["param"] == "id_slot"

    async def test_a_slot_is_restored_after_a_restart_without_reading_its_prompt_again(self, tmp_path: Path) -> None:
        states = StateSettings(folder=tmp_path)
        prompt = "The quick brown fox jumps over the lazy dog. " * 10
        for is_restarted in (False, True):
            engine = await load_engine(demo_choice(states=states))
            async with client_over(engine) as client:
                if not is_restarted:
                    body = {"prompt": prompt, "id_slot": 0, "n_predict": 1}
                    assert (await client.post("/completion", json=body)).status == 200
                    saved = await self.act(client, "save", 0, filename="a")
                    continue
                restored = await self.act(client, "restore", 0, filename="a")
                assert restored["n_restored"] == saved["n_saved"]
                body = {"prompt": f"{prompt} And", "n_predict": 8, "temperature": 0}
                answer = await (await client.post("/completion", json=body)).json()
                assert answer["tokens_cached"] == saved["n_saved"]
                assert answer["timings"]["prompt_n"] == answer["tokens_evaluated"] - saved["n_saved"]
                apart = await (await client.post("/completion", json={**body, "cache_salt": "another"})).json()
                assert (apart["tokens_cached"], apart["content"]) == (0, answer["content"])

    @pytest.mark.parametrize("fields", [{"cache_salt": "secret"}, {"state": "a"}, {"id_slot": -1}])
    async def test_prompts_that_are_not_noted(self, serve: Serve, fields: Body) -> None:
        client = await serve(FakeEngine())
        await client.post("/v1/states", json={"name": "a", "prompt": "ab"})
        assert (await client.post("/completion", json={"prompt": "b", "id_slot": 1, **fields})).status == 200
        assert (await self.act(client, "erase"))["n_erased"] == 0

    async def test_a_prompt_that_is_not_noted_takes_the_place_of_an_earlier_one(self, serve: Serve) -> None:
        client = await serve(FakeEngine())
        for fields in ({}, {"cache_salt": "secret"}):
            response = await client.post("/completion", json={"prompt": "b", "id_slot": 1, **fields})
            assert response.status == 200
        await error_of(await client.post("/slots/1?action=save", json={"filename": "a"}), 400)

    async def test_prompts_start_from_the_default_state(self, serve: Serve) -> None:
        engine = FakeEngine()
        client = await serve(engine)
        root = make_default(engine, 7)
        await client.post("/completion", json={"prompt": "ab", "id_slot": 1})
        assert (await self.act(client, "save", filename="s"))["n_saved"] == 2
        assert (await self.act(client, "restore", 0, filename="s"))["n_restored"] == 2
        for request in engine.requests:
            assert (request.initial_state is not None, list(request.prompt)) == (True, encode("ab"))
            assert request.initial_state is None or request.initial_state.root == root
        await client.post("/completion", json={"prompt": "ab", "id_slot": 1, "state": "none"})
        assert (await self.act(client, "erase"))["n_erased"] == 0
        make_default(engine, 8)
        error = await error_of(await client.post("/slots/0?action=restore", json={"filename": "s"}), 400)
        assert error["param"] == "filename"  # it is another state now

    async def test_a_mix_is_not_noted(self, serve: Serve) -> None:
        client = await serve(FakeEngine())
        await client.post("/v1/states", json={"name": "a", "prompt": "ab"})
        states = [{"name": "none", "weight": 1}, {"name": "a", "weight": 1}]
        response = await client.post("/completion", json={"prompt": "b", "id_slot": 1, "state": states})
        assert (response.status, (await self.act(client, "erase"))["n_erased"]) == (200, 0)

    async def test_a_state_that_was_not_saved_from_a_slot_restores_no_prompt(self, serve: Serve) -> None:
        client = await serve(FakeEngine())
        await client.post("/v1/states", json={"name": "a", "prompt": "ab"})
        error = await error_of(await client.post("/slots/1?action=restore", json={"filename": "a"}), 400)
        assert "saved from a slot" in error["message"]
        await error_of(await client.post("/slots/1?action=restore", json={"filename": "b"}), 404)

    @pytest.mark.parametrize(
        ("path", "body", "param"),
        [
            ("/slots/2?action=erase", {}, "id"),
            ("/slots/x?action=erase", {}, "id"),
            ("/slots/1?action=drop", {}, "action"),
            ("/slots/1", {}, "action"),
            ("/slots/1?action=save", {}, "filename"),
            ("/completion", {"prompt": "a", "id_slot": 2}, "id_slot"),
        ],
    )
    async def test_what_is_refused(self, serve: Serve, path: str, body: Body, param: str) -> None:
        error = await error_of(await (await serve(FakeEngine(num_slots=2))).post(path, json=body), 400)
        assert error["param"] == param


def test_prompts_are_kept_as_far_as_there_is_room() -> None:
    prompts = BoundedStore[str, bytes](most_values=2, most_bytes=5)

    def put(key: str, prompt: bytes) -> None:
        prompts.put(key, prompt, len(prompt))

    put("a", b"12")
    put("b", b"3")
    assert prompts.get("a") == b"12"
    put("c", b"4")
    assert [prompts.get(key) for key in "abc"] == [b"12", None, b"4"]
    put("a", b"12345")
    assert [prompts.get(key) for key in "abc"] == [b"12345", None, None]
    put("b", b"123456")  # has no room at all
    assert [prompts.get(key) for key in "ab"] == [b"12345", None]
    assert prompts.usage == KeptUsage(values=1, num_bytes=5, evictions=3)
    assert (prompts.pop("a"), prompts.pop("a")) == (b"12345", None)
    put("a", b"1")
    put("a", b"123456")
    assert prompts.get("a") is None  # it was replaced


async def test_tokenizer_info(serve: Serve) -> None:
    client = await serve(FakeEngine())
    answer = await (await client.get("/tokenizer_info")).json()
    check_shape(TokenizerInfo, answer)
    assert answer["eos_token"] is None
    assert (await post(client, "/detokenize", Text, {"tokens": encode("hi")}))["prompt"] == "hi"
    demo = await serve(FakeEngine(special_tokens={"<|end|>": 0, "<|other|>": 5}))
    assert (await (await demo.get("/tokenizer_info")).json())["eos_token"] == "<|end|>"
