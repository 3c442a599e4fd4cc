"""Clients that write persistent states, and a ledger of the acknowledged writes that must survive a crash."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from tools.live_server.caller import CHAT, Caller, RefusedError, expect_that, state_path

_NAMES = 6  # of a writer

_Write: TypeAlias = Callable[[str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Write:
    """A request that changes named states. `before` has the digest of each name's earlier state; None = no state."""

    kind: str
    before: Mapping[str, str | None]
    may_remove: bool = False
    same_state: bool = False  # it moves one state: afterwards exactly one of the names has it


@dataclass
class Ledger:
    """The expected states: the digest of each name's last acknowledged state. A name has one writer."""

    states: dict[str, str] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)  # names whose removal was acknowledged
    acknowledged: Counter[str] = field(default_factory=Counter)  # writes by kind
    cut_off: Counter[str] = field(default_factory=Counter)  # writes without an answer, by kind and the state found
    checks: int = 0  # of states after a restart
    _open: list[Write] = field(default_factory=list)

    @contextmanager
    def write(
        self, kind: str, *names: str, may_remove: bool = False, same_state: bool = False
    ) -> Iterator[dict[str, str | None]]:
        """Record a write of `names`, which stays open if the block raises.

        The block puts the digests that the server answers into the yielded dict.
        """
        write = Write(kind, {name: self.states.get(name) for name in names}, may_remove, same_state)
        self._open.append(write)
        answered: dict[str, str | None] = {}
        yield answered
        self._open.remove(write)
        self.acknowledged[kind] += 1
        self._adopt(answered)

    def check(self, found: Mapping[str, str]) -> list[str]:
        """Compare `found`, the digests by name that a server has after a restart. Return a description of each fault.

        Writes without an answer may have been made or not; what is found of them is adopted.
        """
        faults = [fault for write in self._open for fault in self._check_open(write, found)]
        for write in self._open:
            self._adopt({name: found.get(name) for name in write.before})
        self._open.clear()
        self.checks += len(self.states) + len(self.gone)
        for name, digest in self.states.items():
            if name not in found:
                faults.append(f"{name!r} is lost")
            elif found[name] != digest:
                faults.append(f"{name!r} is {found[name]}, not {digest}")
        faults += [f"{name!r} was removed and is back" for name in sorted(self.gone & found.keys())]
        faults += [f"{name!r} was never made" for name in sorted(found.keys() - self.states.keys() - self.gone)]
        return faults

    def _check_open(self, write: Write, found: Mapping[str, str]) -> Iterator[str]:
        before = {digest for digest in write.before.values() if digest is not None}
        now = {name: found[name] for name in write.before if name in found}
        changed = any(now.get(name) != digest for name, digest in write.before.items())
        self.cut_off[f"{write.kind}: {'the new' if changed else 'the old'}"] += 1
        if write.same_state and (len(now) != 1 or set(now.values()) != before):
            yield f"{write.kind} of {dict(write.before)} left {now}"
        elif before and not now and not write.may_remove:
            yield f"{write.kind} of {dict(write.before)} left nothing"
        elif write.may_remove and now and set(now.values()) != before:
            yield f"{write.kind} of {dict(write.before)} left {now}"

    def _adopt(self, outcome: Mapping[str, str | None]) -> None:
        for name, digest in outcome.items():
            if digest is None:
                self.states.pop(name, None)
                self.gone.add(name)
            else:
                self.states[name] = digest
                self.gone.discard(name)


async def found_states(caller: Caller) -> dict[str, str]:
    """Return the digests of the persistent states that a server has, by name."""
    listed = (await caller.call("GET", "/v1/states"))["data"]
    return {each["name"]: each["digest"] for each in listed if each["persistent"] and not each["read_only"]}


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
