"""Make documents and questions about a small world, read from world.toml: what the demo pair learns, and its test.

A fact is a subject's object in a relation. A document states one fact, and a question asks for one. In training there
are no unseen wordings of questions, and no unseen facts, of which each relation has one.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from tools.demo_model.corpus.texts import items

UNSEEN_WORDINGS = 2  # of each relation's questions, the last ones
_WITH_MORE = 0.5  # of the documents have a second sentence
_MIXED = 624  # facts, besides the seen ones, that make no sense
_SAME_TOPIC = 0.6  # of the relations and subjects of close facts
_CARELESS = 0.3  # of the questions of training are typed carelessly
_INSTRUCTION = "Instruct: Given a query, retrieve documents that answer the query\n"


@dataclass(frozen=True, slots=True)
class Fact:
    """A subject, by its names, with its object in a relation, and how it is written and asked for."""

    topic: str
    relation: str
    names: tuple[str, ...]
    object: str
    documents: tuple[str, ...]  # wordings with {subject} and {object}
    queries: tuple[str, ...]
    more: tuple[str, ...]  # sentences that may follow
    seen: bool  # in training

    @property
    def seen_queries(self) -> tuple[str, ...]:
        return self.queries[:-UNSEEN_WORDINGS]

    @property
    def unseen_queries(self) -> tuple[str, ...]:
        return self.queries[-UNSEEN_WORDINGS:]

    def document(self, rng: random.Random) -> str:
        """Return a document that states the fact, in a wording, with a name, and with or without a second sentence."""
        stated = self._fill(rng.choice(self.documents), rng)
        return f"{stated} {rng.choice(self.more)}" if rng.random() < _WITH_MORE else stated

    def query(self, wordings: Sequence[str], rng: random.Random) -> str:
        """Return a question that the fact answers, in one of `wordings`."""
        return self._fill(rng.choice(wordings), rng)

    def careless_query(self, rng: random.Random, left_out: float = 0.0) -> str:
        """Return a question in a wording of the training, now and then without its mark or its capital letter.

        Each word of the wording is left out with probability `left_out`, but no name.
        """
        wording = rng.choice(self.seen_queries)
        if left_out:
            wording = " ".join(word for word in wording.split(" ") if "{" in word or rng.random() >= left_out)
        query = self._fill(wording, rng)
        if rng.random() < _CARELESS:
            query = query.rstrip("?.")
        if rng.random() < _CARELESS:
            query = query[0].lower() + query[1:]
        return query

    def _fill(self, wording: str, rng: random.Random) -> str:
        filled = wording.format(subject=rng.choice(self.names), object=self.object)
        return filled[0].upper() + filled[1:]


@dataclass(frozen=True, slots=True)
class Question:
    """A question of the test, and the number of the document that answers it."""

    text: str
    answer: int


@dataclass(frozen=True, slots=True)
class Test:
    """What is measured: one document for each fact, and the questions of each kind."""

    documents: tuple[str, ...]
    kinds: dict[str, tuple[Question, ...]]


@cache
def facts() -> tuple[Fact, ...]:
    """Return all facts of the world."""
    world = tomllib.loads(Path(__file__).with_name("world.toml").read_text("utf-8"))
    found: list[Fact] = []
    for topic in world["topics"]:
        subjects = [_split(line) for line in items(topic["subjects"])]
        unseen_subjects = random.Random(topic["name"]).sample(range(len(subjects)), len(topic["relations"]))
        for relation, unseen in zip(topic["relations"], unseen_subjects, strict=True):
            objects = _split(relation["facts"])
            found += [
                Fact(
                    topic=topic["name"],
                    relation=relation["name"],
                    names=names,
                    object=object_,
                    documents=items(relation["documents"]),
                    queries=items(relation["queries"]),
                    more=items(topic["more"]),
                    seen=number != unseen,
                )
                for number, (names, object_) in enumerate(zip(subjects, objects, strict=True))
            ]
    return tuple(found)


def seen_facts() -> tuple[Fact, ...]:
    """Return the facts of the training."""
    return tuple(fact for fact in facts() if fact.seen)


@cache
def training_facts() -> tuple[Fact, ...]:
    """Return the facts of the training: the seen ones, and some that say of a subject what fits another topic's.

    Those make no sense. They keep a model from learning by heart which subjects and relations there are.
    """
    rng = random.Random(_MIXED)
    known = seen_facts()
    mixed: list[Fact] = []
    while len(mixed) < _MIXED:
        said, about = rng.sample(known, 2)
        if said.topic != about.topic:
            queries = tuple(query for query in said.queries if "{subject}" in query)
            mixed.append(replace(said, names=about.names, queries=queries))
    return (*known, *mixed)


def close_facts(rng: random.Random) -> list[Fact]:
    """Return four facts: two subjects, each in two relations.

    Many make no sense. Their objects differ, so a question about one fact has no other answer among the four. Unseen
    facts are left out, whatever their object is.
    """
    relations, held_out = _relations()
    while True:
        first, second = rng.choice(relations), rng.choice(relations)
        if rng.random() < _SAME_TOPIC:
            second = rng.choice([known for known in relations if known[0].topic == first[0].topic])
        subjects = rng.sample(first if rng.random() < _SAME_TOPIC else seen_facts(), 2)
        if first is second or subjects[0].names == subjects[1].names:
            continue
        chosen = [
            replace(said, names=subject.names)
            for known in (first, second)
            for subject, said in zip(subjects, rng.sample(known, 2), strict=True)
        ]
        if len({(fact.relation, fact.object) for fact in chosen}) == len(chosen) and not any(
            (fact.topic, fact.relation, fact.names) in held_out for fact in chosen
        ):
            return chosen


@cache
def _relations() -> tuple[list[list[Fact]], set[tuple[str, str, tuple[str, ...]]]]:
    """Return the seen facts of each relation, and the subjects of unseen ones by topic and relation."""
    known: dict[tuple[str, str], list[Fact]] = {}
    for fact in seen_facts():
        known.setdefault((fact.topic, fact.relation), []).append(fact)
    return list(known.values()), {(fact.topic, fact.relation, fact.names) for fact in facts() if not fact.seen}


def document_part(document: str) -> str:
    """Return what a pair's text begins with, for any query."""
    return f"{_INSTRUCTION}Document: {document}\n"


def query_part(query: str) -> str:
    """Return what a pair's text ends with, for any document."""
    return f"Query: {query}"


def pair_text(document: str, query: str) -> str:
    """Return the text after which a reranker reads the state."""
    return document_part(document) + query_part(query)


def training_texts(seed: int) -> Iterator[str]:
    """Yield texts of the training without end: documents, questions, and pairs of both."""
    rng = random.Random(seed)
    known = seen_facts()
    while True:
        fact = rng.choice(known)
        document, query = fact.document(rng), fact.careless_query(rng)
        yield from (document, query, pair_text(document, query))


def make_test(seed: int = 31) -> Test:
    """Return the test. Every call with the same seed returns the same one."""
    rng = random.Random(seed)
    documents = tuple(fact.document(rng) for fact in facts())
    kinds: dict[str, list[Question]] = {"unseen wording": [], "unseen fact": [], "unseen fact and wording": []}
    for number, fact in enumerate(facts()):
        for wording in fact.seen_queries:
            if not fact.seen:
                kinds["unseen fact"].append(Question(fact.query([wording], rng), number))
        kind = "unseen wording" if fact.seen else "unseen fact and wording"
        kinds[kind] += [Question(fact.query([wording], rng), number) for wording in fact.unseen_queries]
    return Test(documents, {kind: tuple(questions) for kind, questions in kinds.items()})


def _split(line: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in line.split("|"))
