"""Checks of cohere, the official client, against the server: `rerank` of both versions of its API."""

from __future__ import annotations

from typing import Any

import cohere

from tools.clients.questions import MODEL, TEXTS, Checks, Ranking, ranks_texts, root_of


def _ranking(results: Any) -> Ranking:  # noqa: ANN401
    return [(result.index, result.relevance_score) for result in results]


def _first(url: str, query: str) -> Ranking:
    client = cohere.Client("-", base_url=root_of(url))
    return _ranking(client.rerank(query=query, documents=TEXTS, model=MODEL).results)


def _second(url: str, query: str) -> Ranking:
    client = cohere.ClientV2("-", base_url=root_of(url))
    return _ranking(client.rerank(query=query, documents=TEXTS, model=MODEL).results)


CHECKS: Checks = {"`Client.rerank`": ranks_texts(_first), "`ClientV2.rerank`": ranks_texts(_second)}
