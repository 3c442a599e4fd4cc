"""The format of each matrix, from a user's text."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import DTypeLike

from rnn_engine.errors import InvalidRequestError
from rnn_engine.forward.weight_choice import WeightChoice, stored_format
from tests.support.models import tiny_shape

ATT, FFN, HEAD, EMB = "blocks.3.att.key.weight", "blocks.12.ffn.value.weight", "head.weight", "emb.weight"
ADAPTER, V6_ADAPTER = "blocks.0.att.w1", "blocks.1.att.time_maa_w2"


def formats(text: str) -> list[str]:
    """The formats of one tensor of each class: att, ffn, head, emb, adapters."""
    choice = WeightChoice.parse(text).of(tiny_shape(layers=24))
    assert choice(ADAPTER) == choice(V6_ADAPTER)
    found = [choice(name) for name in (ATT, FFN, HEAD, EMB, ADAPTER)]
    return ["stored" if one is None else one.name for one in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f16", ["f16", "f16", "f16", "stored", "f16"]),
        ("f32", ["f32", "f32", "f32", "stored", "f32"]),
        ("stored", ["stored"] * 5),
        ("int8", ["int8", "int8", "int8", "stored", "f16"]),
        ("int4", ["int4", "int4", "int8", "stored", "f16"]),
        ("int4,head=q4_0", ["int4", "int4", "q4_0", "stored", "f16"]),
        ("nf4, emb=q8_0, adapters=f32", ["nf4", "nf4", "int8", "q8_0", "f32"]),
        ("f16,ffn=q4_0", ["f16", "q4_0", "f16", "stored", "f16"]),
        ("q5_k", ["q5_k", "q5_k", "q5_k", "stored", "f16"]),
        ("q4_k_m", ["q4_k", "q4_k", "q6_k", "q4_k", "f16"]),
        ("q5_k_m,head=q8_0", ["q5_k", "q5_k", "q8_0", "q5_k", "f16"]),
        ("sf4,layers=12", ["sf4", "f16", "int8", "stored", "f16"]),
        ("int8,layers=0,head=f16", ["f16", "f16", "f16", "stored", "f16"]),
    ],
)
def test_a_choice(text: str, expected: list[str]) -> None:
    assert formats(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("int8", ["int8", "int8"]),
        ("int4", ["int8", "int8"]),
        ("int4,end=int4", ["int4", "int4"]),
        ("q4_0,ffn=f16,end=q8_0", ["q8_0", "q8_0"]),
        ("int8,att=nf4", ["nf4", "int8"]),
        ("q4_k", ["int8", "int8"]),
        ("q4_k_m", ["q4_k", "q4_k"]),
        ("nf4,layers=0", ["f16", "f16"]),
        ("stored", ["stored", "stored"]),
    ],
)
@pytest.mark.parametrize("end", ["first", "last"])
def test_matrices_of_the_ends_have_8_bits_where_others_have_4(end: str, text: str, expected: list[str]) -> None:
    choice = WeightChoice.parse(text.replace("end=", f"{end}=")).of(tiny_shape(layers=6))
    layer = {"first": 0, "last": 5}[end]
    found = [choice(f"blocks.{layer}.{name}.weight") for name in ("att.key", "ffn.value")]
    assert ["stored" if one is None else one.name for one in found] == expected


@pytest.mark.parametrize(("model_layers", "expected"), [(1, "88"), (2, "84"), (3, "848")])
def test_a_model_of_few_layers_has_some_in_4_bits(model_layers: int, expected: str) -> None:
    choice = WeightChoice.parse("int4").of(tiny_shape(layers=model_layers))
    found = [choice(f"blocks.{layer}.att.key.weight") for layer in range(model_layers)]
    assert [one is not None and one.name for one in found] == [f"int{bits}" for bits in expected[:model_layers]]


def test_activations_are_f32_unless_a_choice_says_int8() -> None:
    assert WeightChoice.parse("int8,head=f16").activations == "f32"
    assert WeightChoice.parse("int8,activations=f32") == WeightChoice.parse("int8")
    assert WeightChoice.parse("int4, activations=int8,layers=3") == replace(
        WeightChoice.parse("int4,layers=3"), activations="int8"
    )


@pytest.mark.parametrize(
    "text",
    [
        *("", "f8", "int8,", "int8,head", "int8,head=f8", "int8,head=q4_k_m"),
        *("int8,neck=f16", "f16,layers=-1", "int8,activations=int4"),
    ],
)
def test_what_is_no_choice_is_refused_with_what_is_allowed(text: str) -> None:
    allowed = r"one of the formats stored, f16|att=FORMAT.*layers=N, activations=f32\|int8"
    with pytest.raises(InvalidRequestError, match=allowed) as refused:
        WeightChoice.parse(text)
    assert refused.value.field == "weights"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("int4,head=int8,head=f16", "head"),
        ("int4,head=int8,emb=f16,head=int8", "head"),
        ("int4,layers=2,layers=3", "layers"),
        ("int8,activations=int8,activations=f32", "activations"),
    ],
)
def test_what_is_chosen_twice_is_refused(text: str, name: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"^weights: '{text}' is not allowed; expected {name}= at most once$"):
        WeightChoice.parse(text)


@pytest.mark.parametrize(
    ("dtype", "name"), [(np.float16, "f16"), (ml_dtypes.bfloat16, "bf16"), (np.float32, "f32"), (np.float64, "f32")]
)
def test_a_stored_type_is_kept(dtype: DTypeLike, name: str) -> None:
    assert stored_format(np.dtype(dtype)).name == name
