"""Checks of huggingface_hub's `InferenceClient`, the client of text-embeddings-inference, against the server."""

from __future__ import annotations

from huggingface_hub import InferenceClient

from tools.clients.questions import TEXTS, Checks, embeds_texts, root_of


def _embed(url: str) -> list[list[float]]:
    vectors: list[list[float]] = InferenceClient(f"{root_of(url)}/embed").feature_extraction(TEXTS).tolist()
    return vectors


def _compare(url: str) -> list[float]:
    found = InferenceClient(f"{root_of(url)}/similarity").sentence_similarity(TEXTS[0], other_sentences=TEXTS)
    assert found[0] == max(found), found
    return found


CHECKS: Checks = {"`feature_extraction`": embeds_texts(_embed), "`sentence_similarity`": _compare}
