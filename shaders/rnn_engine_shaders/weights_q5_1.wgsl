// Weights as numbers from 0 to 31, times the scale of their block, plus the block's offset. A block is 32 weights.

#include five_bits

@group(0) @binding(6) var<storage, read> scales: array<u32>; // scale and offset as halves

fn load_weights(row: u32, eight: u32) -> Eight {
    let figures = unpack2x16float(scales[row + eight / 4u * PANEL]);
    return affine(load_numbers(row, eight, 4u), figures.x, figures.y);
}
