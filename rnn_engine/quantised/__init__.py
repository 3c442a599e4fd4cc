"""Quantised weight formats of 8 and 4 bits, in numpy: a matrix is stored in blocks of consecutive weights of a row."""

from rnn_engine.quantised.blocks import (
    BlockFormat,
    Blocks,
    blocks_of_row,
    bytes_of_codes,
    columns_of_item,
    pack_codes,
    quantise,
    quantise_rows,
    unpack_codes,
)
from rnn_engine.quantised.formats import NF4_LEVELS, SF4_LEVELS
from rnn_engine.quantised.gguf_blocks import BLOCK_FORMATS, KEPT_FORMATS

__all__ = [
    "BLOCK_FORMATS",
    "KEPT_FORMATS",
    "NF4_LEVELS",
    "SF4_LEVELS",
    "BlockFormat",
    "Blocks",
    "blocks_of_row",
    "bytes_of_codes",
    "columns_of_item",
    "pack_codes",
    "quantise",
    "quantise_rows",
    "unpack_codes",
]
