// Weights as numbers from 0 to 15, times the scale of their block, plus the block's offset. A u32 holds eight numbers.
// A block is BLOCK_EIGHTS times eight weights.

#include CODES

@group(0) @binding(2) var<storage, read> weights: array<u32>;
@group(0) @binding(6) var<storage, read> scales: array<u32>; // scale and offset as halves

fn prepare_weights(thread: u32) {}

fn load_weights(row: u32, eight: u32) -> Eight {
    let word = weights[eight_index(row, eight, BLOCK_EIGHTS)];
    let figures = unpack2x16float(scales[row + eight / BLOCK_EIGHTS * PANEL]);
    return affine(eight_nibbles(word), figures.x, figures.y);
}
