// Weights as numbers from 0 to 15, minus 8, times the scale of their block. A block is 32 weights; a u32 holds eight.

#include block_scales
#include CODES

@group(0) @binding(2) var<storage, read> weights: array<u32>;

fn prepare_weights(thread: u32) {}

fn load_weights(row: u32, eight: u32) -> Eight {
    let word = weights[eight_index(row, eight, 4u)];
    let scale = block_scale(row + eight / 4u * PANEL);
    return affine(eight_nibbles(word), scale, -8.0 * scale);
}
