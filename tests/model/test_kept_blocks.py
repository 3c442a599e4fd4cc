"""GGUF's blocks are kept: the same numbers to the bit, the same bytes again, and nothing else is converted to them."""

from __future__ import annotations

import numpy as np
import pytest

from rnn_engine.errors import ModelError
from rnn_engine.forward.weight_formats import STORED_FORMATS
from rnn_engine.quantised import BLOCK_FORMATS, pack_codes, quantise, unpack_codes
from rnn_engine.quantised.gguf_blocks import read_blocks, write_blocks
from tests.support.kept_blocks import KINDS, ONLY_KEPT, dequantised, random_bytes, random_kept

every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
@pytest.mark.parametrize("shape", [(1, 256), (13, 512), (8, 2560)])
def test_numbers_are_those_of_gguf_to_the_bit(kind: str, shape: tuple[int, int]) -> None:
    data = random_bytes(kind, *shape, wild=True)
    blocks = read_blocks(kind, data.reshape(-1), shape)
    expected = dequantised(kind, data)
    assert np.array_equal(blocks.numbers().view(np.uint32), expected.view(np.uint32))
    weights = STORED_FORMATS[kind.lower()]
    packed = weights.pack(blocks)
    assert np.array_equal(weights.unpack(packed, *shape).view(np.uint32), expected.view(np.uint32))
    assert {name: values.nbytes // (-(-shape[0] // 8) * 8) for name, values in packed.items()} == {
        name: size * shape[1] // weights.block_columns for name, size in weights.block_bytes.items()
    }


@every_kind
def test_blocks_come_back_as_the_same_bytes(kind: str) -> None:
    data = random_bytes(kind, 5, 768, wild=True)
    assert np.array_equal(write_blocks(read_blocks(kind, data.reshape(-1), (5, 768))), data)


@every_kind
def test_some_rows_and_scaled_ones(kind: str) -> None:
    blocks = random_kept(kind, 9, 512)
    assert np.array_equal(blocks[2:5].numbers(), blocks.numbers()[2:5])
    halved = blocks.scaled(0.5)
    assert halved is not None
    np.testing.assert_allclose(halved.numbers(), blocks.numbers() / 2, rtol=1e-3, atol=1e-4)  # subnormals are rounded
    large = blocks.scaled(2.0**14)
    assert large is not None
    assert np.array_equal(large.numbers(), blocks.numbers() * 2.0**14)
    assert large.scaled(2.0**14) is None


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_codes_come_back(bits: int) -> None:
    codes = np.random.default_rng(1).integers(0, 1 << bits, (3, 2, 256), np.uint8)
    packed = pack_codes(codes, bits)
    assert packed.shape == (3, 2, 32 * bits)
    assert np.array_equal(unpack_codes(packed, bits), codes)


@pytest.mark.parametrize("kind", ONLY_KEPT)
def test_numbers_can_not_become_such_blocks(kind: str) -> None:
    with pytest.raises(ModelError, match=rf"weights can't be converted to {kind.lower()}: such blocks are only kept"):
        STORED_FORMATS[kind.lower()].pack(np.ones((8, 256), np.float32))


ERRORS = {  # relative, of llama.cpp's ggml_quantize_chunk on the same numbers
    "normal": {"q4_k": 0.071672, "q5_k": 0.036187, "q6_k": 0.017881},
    "laplace": {"q4_k": 0.083936, "q5_k": 0.042619, "q6_k": 0.021321},
    "standard_cauchy": {"q4_k": 0.038547, "q5_k": 0.027071, "q6_k": 0.014360},
}


def test_k_quants_lose_no_more_than_those_of_llama_cpp() -> None:
    generator = np.random.default_rng(7)
    for kind, errors in ERRORS.items():
        matrix = getattr(generator, kind)(size=(32, 512)).astype(np.float32)
        for name, expected in errors.items():
            found = quantise(BLOCK_FORMATS[name], matrix).numbers()
            assert np.linalg.norm(found - matrix) < 1.03 * expected * np.linalg.norm(matrix), (kind, name)
