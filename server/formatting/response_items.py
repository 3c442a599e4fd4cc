"""The items of a response while its answer comes, and the events that tell of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from rnn_engine.chat_template.answer import Part, Piece
from server.schemas.chat_answer import ChatTokenLogprob

ItemType: TypeAlias = Literal["message", "reasoning", "function_call"]

_TYPE_OF: Mapping[Part, ItemType] = {
    Part.CONTENT: "message",
    Part.REASONING: "reasoning",
    Part.CALL: "function_call",
    Part.ARGUMENTS: "function_call",
}
_PREFIX: Mapping[ItemType, str] = {"message": "msg", "reasoning": "rs", "function_call": "fc"}
_TEXT_EVENT: Mapping[ItemType, str] = {"message": "response.output_text", "reasoning": "response.reasoning_text"}


class ItemWriter:
    """Makes the pieces of one answer into items, one after another. `key` is a part of their ids."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._is_open = False
        self.items: list[dict[str, Any]] = []

    def tell(self, pieces: Sequence[Piece], logprobs: Sequence[ChatTokenLogprob] = ()) -> Iterator[Mapping[str, Any]]:
        """Add pieces, and yield the events that tell of them. `logprobs` are those of their content."""
        waiting = list(logprobs)
        for piece in pieces:
            kind = _TYPE_OF.get(piece.part)
            if kind is None:
                continue
            if not self._is_open or piece.part is Part.CALL or kind != self.items[-1]["type"]:
                yield from self._close("completed")
                yield from self._open(kind, piece)
            if piece.part is Part.CONTENT:
                yield self._add_text(piece.text, waiting)
                waiting = []
            elif piece.part is Part.REASONING:
                yield self._add_text(piece.text)
            elif piece.part is Part.ARGUMENTS:
                self.items[-1]["arguments"] += piece.text
                yield self._event("response.function_call_arguments.delta", delta=piece.text)

    def finish(self, *, is_cut: bool) -> Iterator[Mapping[str, Any]]:
        """End the last item, and yield the events that tell of it. An answer without any is an empty message."""
        if not any(item["type"] != "reasoning" for item in self.items) and not is_cut:
            yield from self._close("completed")
            yield from self._open("message", None)
        yield from self._close("incomplete" if is_cut else "completed")

    def _open(self, kind: ItemType, piece: Piece | None) -> Iterator[Mapping[str, Any]]:
        number = len(self.items)
        item: dict[str, Any] = {
            "id": f"{_PREFIX[kind]}_{self._key}{number:04x}",
            "type": kind,
            "status": "in_progress",
        }
        if piece is not None and kind == "function_call":
            item |= {"call_id": f"call_{self._key}{number:04x}", "name": piece.text, "arguments": ""}
        else:
            item["content"] = []
            if kind == "message":
                item["role"] = "assistant"
            else:
                item["summary"] = []
        self.items.append(item)
        self._is_open = True
        yield {"type": "response.output_item.added", "output_index": number, "item": _copy(item)}
        if kind != "function_call":
            item["content"].append(_empty_part(kind))
            yield self._content_event("response.content_part.added", part=_empty_part(kind))

    def _close(self, status: str) -> Iterator[Mapping[str, Any]]:
        if not self._is_open:
            return
        item = self.items[-1]
        item["status"] = status
        self._is_open = False
        if item["type"] == "function_call":
            name, arguments = item["name"], item["arguments"]
            yield self._event("response.function_call_arguments.done", name=name, arguments=arguments)
        else:
            [part] = item["content"]
            tokens = {"logprobs": part["logprobs"]} if item["type"] == "message" else {}
            yield self._content_event(f"{_TEXT_EVENT[item['type']]}.done", text=part["text"], **tokens)
            yield self._content_event("response.content_part.done", part=part)
        yield {"type": "response.output_item.done", "output_index": len(self.items) - 1, "item": item}

    def _add_text(self, text: str, logprobs: Sequence[ChatTokenLogprob] = ()) -> Mapping[str, Any]:
        item = self.items[-1]
        [part] = item["content"]
        part["text"] += text
        if item["type"] == "message":
            part["logprobs"] += logprobs
            return self._content_event("response.output_text.delta", delta=text, logprobs=logprobs)
        return self._content_event("response.reasoning_text.delta", delta=text)

    def _content_event(self, kind: str, **fields: object) -> Mapping[str, Any]:
        return self._event(kind, content_index=0, **fields)

    def _event(self, kind: str, **fields: object) -> Mapping[str, Any]:
        return {"type": kind, "item_id": self.items[-1]["id"], "output_index": len(self.items) - 1, **fields}


def _empty_part(kind: ItemType) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": ""}
    return {"type": "output_text", "text": "", "annotations": [], "logprobs": []}


def _copy(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an item without what is added to it later."""
    return {**item, "content": []} if "content" in item else item
