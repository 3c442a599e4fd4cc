"""Every text that the grammar of a JSON schema allows is valid."""

from __future__ import annotations

import json

import pytest
from jsonschema import Draft202012Validator

from rnn_engine.grammar import json_grammar
from tests.support.grammars import random_text
from tests.support.random_schemas import random_schema


@pytest.mark.parametrize("seed", range(0, 300, 11))
def test_texts_of_a_schema_are_valid(seed: int) -> None:
    schema = random_schema(seed)
    for number in range(2):
        text = random_text(json_grammar(schema), number, most=3000)
        assert text is not None
        Draft202012Validator(schema).validate(json.loads(text))
