"""The small world of the demo pair: what is held out stays out of training, and questions have one answer."""

from __future__ import annotations

import itertools
import random
from collections import Counter, defaultdict

from tools.demo_retrieval.corpus import (
    UNSEEN_WORDINGS,
    Fact,
    close_facts,
    document_part,
    facts,
    make_test,
    pair_text,
    query_part,
    seen_facts,
    training_facts,
    training_texts,
)
from tools.demo_retrieval.vocabulary import Encoder, build


def by_relation() -> dict[tuple[str, str], list[Fact]]:
    found = defaultdict(list)
    for fact in facts():
        found[fact.topic, fact.relation].append(fact)
    return found


def test_the_same_seed_gives_the_same_texts() -> None:
    first, again, other = (list(itertools.islice(training_texts(seed), 30)) for seed in (1, 1, 2))
    assert first == again != other
    assert make_test() == make_test() != make_test(2)


def test_each_relation_holds_out_one_fact_and_the_last_wordings() -> None:
    for relation in by_relation().values():
        assert sum(not fact.seen for fact in relation) == 1
        assert {len(fact.unseen_queries) for fact in relation} == {UNSEEN_WORDINGS}
    assert set(seen_facts()) < set(facts())


def test_held_out_questions_and_documents_are_not_in_training() -> None:
    test = make_test()
    asked = {question.text for questions in test.kinds.values() for question in questions}
    unseen = {document for fact, document in zip(facts(), test.documents, strict=True) if not fact.seen}
    assert len(unseen) == len(by_relation())
    for text in itertools.islice(training_texts(5), 30_000):
        assert text not in asked
        assert text not in unseen


def test_no_held_out_fact_is_among_those_of_training_with_any_object() -> None:
    held_out = {(fact.topic, fact.relation, fact.names) for fact in facts() if not fact.seen}
    assert not held_out & {(fact.topic, fact.relation, fact.names) for fact in training_facts()}
    assert {fact.unseen_queries for fact in training_facts()} == {fact.unseen_queries for fact in facts()}


def test_close_facts_share_a_subject_or_a_relation_and_are_not_held_out() -> None:
    held_out = {(fact.topic, fact.relation, fact.names) for fact in facts() if not fact.seen}
    rng = random.Random(7)
    for _ in range(500):
        group = close_facts(rng)
        assert len({fact.names for fact in group}) == len({(fact.topic, fact.relation) for fact in group}) == 2
        assert len({(fact.topic, fact.relation, fact.names) for fact in group}) == len(group) == 4
        assert not held_out & {(fact.topic, fact.relation, fact.names) for fact in group}
        asked = [
            wording.format(subject=fact.names[0], object=fact.object) for fact in group for wording in fact.queries
        ]
        assert len(set(asked)) == len(asked)


def test_no_wording_of_a_question_is_both_seen_and_unseen() -> None:
    for fact in facts():
        assert len(set(fact.queries)) == len(fact.queries)
        for name in fact.names:
            own = {wording.format(subject=name, object=fact.object) for wording in fact.unseen_queries}
            assert not own & {wording.format(subject=name, object=fact.object) for wording in fact.seen_queries}


def test_a_question_has_one_answer() -> None:
    for (topic, relation), found in by_relation().items():
        if any("{subject}" not in wording for wording in found[0].queries):
            objects = Counter(fact.object for fact in found)
            assert max(objects.values()) == 1, f"{topic}, {relation}"
    meant = defaultdict(set)
    for fact in facts():
        for wording in fact.queries:
            for name in fact.names:
                meant[wording.format(subject=name, object=fact.object)].add((fact.topic, fact.relation, fact.names))
    assert not {question: facts for question, facts in meant.items() if len(facts) > 1}


def test_documents_state_their_facts() -> None:
    for fact in facts():
        document = fact.document(random.Random(1)).lower()
        assert fact.object.lower() in document
        assert any(name.lower() in document for name in fact.names)


def test_a_text_ends_with_the_last_token_and_words_can_be_spelt() -> None:
    tokenizer = build()
    encode = Encoder(tokenizer)
    text = pair_text("The bakery opens at six.", "When does the bakery open?")
    tokens, spelt = encode(text), encode(text, encode.some_words(random.Random(1), 1.0))
    read, asked = document_part("The bakery opens at six."), query_part("When does the bakery open?")
    assert encode(read, ends=False) + encode(asked) == tokens
    assert tokens[-1] == spelt[-1] == tokenizer.get_vocab_size() - 1
    assert len(tokens) < 40 < len(text) == len(spelt) - 1
    assert tokenizer.decode(tokens) == tokenizer.decode(spelt) == text
