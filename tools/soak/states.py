"""Clients that create, move and delete named states."""

from __future__ import annotations

from dataclasses import dataclass, field

from tools.live_server.caller import Caller, expect_that
from tools.soak.generation import CHAT, TURNS

_NAMES = tuple(f"soak talk {number}" for number in range(6))


@dataclass
class NamedConversations:
    """Chats that are continued under a name: `state` and `save_as` are the same."""

    free: list[tuple[str, int]] = field(default_factory=lambda: [(name, 0) for name in _NAMES])  # and turns so far

    async def turn(self, caller: Caller) -> None:
        if not self.free:
            return
        name, turns = self.free.pop(caller.random.randrange(len(self.free)))
        begin = {} if turns == 0 else {"state": name}
        body = {"messages": [{"role": "user", "content": caller.text(8)}], "max_tokens": 24, **begin, "save_as": name}
        try:
            if turns == 0:
                await caller.call("DELETE", _path(name), status=(200, 404))
            saved = (await caller.call("POST", CHAT, body))["saved_state"]
            expect_that(saved["name"] == name, f"saved as {saved}")
            turns = (turns + 1) % TURNS
        except BaseException:
            turns = 0
            raise
        finally:
            self.free.append((name, turns))


async def life(caller: Caller) -> None:
    """Create a state, advance, copy and move it, export it and upload the file, and delete all of its copies."""
    name = f"soak {caller.number}"
    made = (await caller.call("POST", "/v1/states", {"name": name, "prompt": caller.text(10), "ttl": 600}))["state"]
    body = {"input": caller.text(5), "logprobs": 1, "top_k": 3}
    advanced = (await caller.call("POST", f"{_path(name)}/advance", body))["state"]
    expect_that(advanced["digest"] != made["digest"], "advancing changed nothing")
    copies = [f"{name} a", f"{name} b"]
    await caller.call("POST", f"{_path(name)}/fork", {"names": copies})
    await caller.call("POST", f"{_path(copies[0])}/take", {"owner": f"owner of {name}", "ttl": 600})
    data = await caller.call("GET", f"{_path(name)}/export")
    brought = await caller.call("PUT", f"{_path(name + ' c')}?ttl=600", data=data)
    expect_that(brought["digest"] == advanced["digest"], f"exported {advanced}, brought {brought}")
    for form in ("tuned", "prefab"):
        await caller.call("GET", f"{_path(name)}/export?form={form}")
    for each in (name, *copies, name + " c"):
        found = await caller.call("GET", _path(each))
        expect_that(found["digest"] == advanced["digest"], f"{each!r} is another state: {found}")
        await caller.call("DELETE", _path(each))
        await caller.call("GET", _path(each), status=(404,))


async def leave_behind(caller: Caller) -> None:
    """Create a state that no client deletes; its lease ends after a minute."""
    body = {"name": f"soak left {caller.number}", "prompt": caller.text(4), "ttl": 60}
    await caller.call("POST", "/v1/states", body)


def _path(name: str) -> str:
    return f"/v1/states/{name.replace(' ', '%20')}"
