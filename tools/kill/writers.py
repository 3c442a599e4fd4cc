"""Clients that create, change, move and delete persistent states, and record each write in a ledger."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from tools.kill.ledger import Ledger
from tools.live_server.caller import CHAT, Caller, RefusedError, expect_that, state_path

_NAMES = 6  # of a writer

_Write: TypeAlias = Callable[[str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class StateWriter:
    """A client that writes persistent states. No other writer uses its names."""

    caller: Caller
    ledger: Ledger
    number: int

    async def write(self) -> None:
        """Make one random write and record it. Raises SurpriseError for an unexpected answer."""
        to_make: tuple[_Write, ...] = (self._create, self._save_answer)
        to_change: tuple[_Write, ...] = (self._advance, self._go_on, self._upload, self._move, self._fork, self._delete)
        name = self._name()
        await self.caller.random.choice(to_change if name in self.ledger.states else to_make)(name)

    async def _create(self, name: str) -> None:
        with self.ledger.write("create", name) as answered:
            body = {"name": name, "prompt": self.caller.text(6), "persistent": True}
            answered[name] = (await self.caller.call("POST", "/v1/states", body))["state"]["digest"]

    async def _save_answer(self, name: str) -> None:
        with self.ledger.write("save an answer", name) as answered:
            answered[name] = await self._chat({"save_as": {"name": name, "persistent": True}})

    async def _go_on(self, name: str) -> None:
        with self.ledger.write("go on under the name", name) as answered:
            answered[name] = await self._chat({"state": name, "save_as": name})

    async def _chat(self, fields: dict[str, object]) -> str:
        body = {"messages": [{"role": "user", "content": self.caller.text(4)}], "max_tokens": 3, **fields}
        answer = await self.caller.call("POST", CHAT, body)
        saved, error = answer["saved_state"], answer.get("save_error")
        if saved is None:
            raise RefusedError(f"not saved: {error}", retryable=error["code"] == "unavailable")
        expect_that(saved["persistent"], f"not persistent: {saved}")
        return str(saved["digest"])

    async def _advance(self, name: str) -> None:
        with self.ledger.write("advance", name) as answered:
            body = {"input": self.caller.text(3)}
            answered[name] = (await self.caller.call("POST", f"{state_path(name)}/advance", body))["state"]["digest"]

    async def _upload(self, name: str) -> None:
        """Export the state `name`, and upload the file under an unused name."""
        data = await self.caller.call("GET", f"{state_path(name)}/export")
        target = self._free_name()
        if target is not None:
            with self.ledger.write("upload", target) as answered:
                brought = await self.caller.call("PUT", f"{state_path(target)}?persistent=true", data=data)
                expect_that(brought["digest"] == self.ledger.states[name], f"exported {name!r}, brought {brought}")
                answered[target] = brought["digest"]

    async def _move(self, name: str) -> None:
        target = self._free_name()
        if target is not None:
            with self.ledger.write("move", name, target, same_state=True) as answered:
                body = {"name": target, "persistent": True}
                moved = await self.caller.call("POST", f"{state_path(name)}/take", body)
                answered.update({name: None, target: moved["digest"]})

    async def _fork(self, name: str) -> None:
        target = self._free_name()
        if target is not None:
            with self.ledger.write("copy", target) as answered:
                body = {"names": [target], "persistent": True}
                [copy] = (await self.caller.call("POST", f"{state_path(name)}/fork", body))["data"]
                answered[target] = copy["digest"]

    async def _delete(self, name: str) -> None:
        with self.ledger.write("remove", name, may_remove=True) as answered:
            await self.caller.call("DELETE", state_path(name))
            answered[name] = None

    def _name(self) -> str:
        return f"writer {self.number} state {self.caller.random.randrange(_NAMES)}"

    def _free_name(self) -> str | None:
        name = self._name()
        return None if name in self.ledger.states else name
