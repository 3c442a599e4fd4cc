// Weights as numbers from 0 to 15, times the scale of their part of a block, minus its minimum. A u32 holds eight.

#include part_scales
#include CODES

@group(0) @binding(2) var<storage, read> weights: array<u32>;

fn prepare_weights(thread: u32) {}

fn load_weights(row: u32, eight: u32) -> Eight {
    let word = weights[eight_index(row, eight, 32u)];
    return scale_part(eight_nibbles(word), row + eight / 32u * PANEL, eight / 4u % 8u);
}
