"""A test of one server that is killed while documents are added to collections, replaced and removed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias
from urllib.parse import quote

from tools.kill.lives import Act, Lives
from tools.live_server.caller import Body, Caller

_PATH: Final = "/v1/collections"
_NAMES: Final = ("notes", "letters", "a list")  # of collections, each with a writer of its own
_MOST: Final = 30  # documents, after which a collection is deleted
_Texts: TypeAlias = Mapping[str, str]  # of documents, by their ids


@dataclass
class _Collection:
    """A collection, and what it may hold: what was acknowledged, and that with a change that has no answer yet."""

    name: str
    possible: list[_Texts | None] = field(default_factory=lambda: [None])  # None: there is no collection

    @property
    def path(self) -> str:
        return f"{_PATH}/{quote(self.name)}"


@dataclass
class CollectionLives(Lives):
    """Kill a server while documents are added to collections, replaced and removed, and compare and search them."""

    collections: Sequence[_Collection] = field(default_factory=lambda: list(map(_Collection, _NAMES)))
    similarities: dict[str, float] = field(default_factory=dict)  # of texts to the query, as they were first found

    what = "SIGKILL while documents are added to collections, replaced and removed"
    most_changes = 12
    longest_delay = 0.3

    def serve_options(self) -> Sequence[str]:
        return ("--collection-folder", str(self.folder))

    def acts(self, make_caller: Callable[[], Caller]) -> Sequence[Act]:
        return [partial(self._change, make_caller(), each) for each in self.collections]

    async def check(self, caller: Caller) -> None:
        for each in self.collections:
            found = await self._found(caller, each)
            self.note(found in each.possible, f"{each.name}: {found} is none of {each.possible}")
            self.checked["changes without an answer"] += len(each.possible) - 1
            each.possible = [found]
            self.checked["collections"] += 1
            if found:
                await self._search(caller, each, found)

    async def _found(self, caller: Caller, collection: _Collection) -> _Texts | None:
        entry = await caller.call("GET", collection.path, status=(200, 404))
        if "error" in entry:
            return None
        listed = (await caller.call("GET", f"{collection.path}/documents?limit=1000"))["data"]
        found = {each["id"]: each["text"] for each in listed}
        self.note(len(listed) == len(found) == entry["documents"], f"{collection.name}: {entry}, listed {listed}")
        return found

    async def _search(self, caller: Caller, collection: _Collection, texts: _Texts) -> None:
        """Check that a search finds each document once, with its text, as near to the query as before."""
        body = {"query": "Where is the red house?", "top_n": len(texts), "rerank": False}
        hits = (await caller.call("POST", f"{collection.path}/query", body))["results"]
        found = sorted((each["id"], each["text"]) for each in hits)
        self.note(found == sorted(texts.items()), f"{collection.name}: a search finds {found} of {texts}")
        for each in hits:
            known = self.similarities.setdefault(each["text"], each["similarity"])
            self.note(abs(known - each["similarity"]) < 1e-4, f"{collection.name}: {each}, once {known}")
        self.checked["searches"] += 1

    async def _change(self, caller: Caller, collection: _Collection) -> None:
        """Make or delete the collection, or change several of its documents at once."""
        texts, random = collection.possible[0], caller.random
        some = random.sample(sorted(texts or ()), min(len(texts or ()), random.randrange(4)))
        after: _Texts | None = None
        body: Body | None = None
        method, path = "POST", f"{collection.path}/documents"
        if texts is None:
            kind, path, body, after = "collections made", _PATH, {"name": collection.name}, {}
        elif len(texts) > _MOST:
            kind, method, path = "collections deleted", "DELETE", collection.path
        elif some and random.random() < 0.4:
            kind, path, body = "removals", f"{path}/delete", {"ids": some}
            after = {name: text for name, text in texts.items() if name not in some}
        else:
            new = {name: caller.text(6) for name in (*some, *(f"{random.getrandbits(32):x}" for _ in range(3)))}
            documents = [{"id": name, "text": text} for name, text in new.items()]
            kind, body, after = "additions", {"documents": documents, "replace": True}, {**texts, **new}
        collection.possible.append(after)
        await caller.call(method, path, body)
        collection.possible = [after]
        self.changes[kind] += 1
