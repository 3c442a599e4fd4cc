// Weights as numbers from 0 to 15, minus 8, times the scale of their block. A block is 32 weights; a u32 holds eight.

#include block_scales
#include nibbles

@group(0) @binding(2) var<storage, read> weights: array<u32>;

fn load_weights(row: u32, eight: u32) -> Eight {
    let block = row + eight / 4u * PANEL;
    let word = weights[eight_index(row, eight, 4u)];
    let scale = block_scale(block);
    let low = vec4<f32>(first_nibbles(word)) - 8.0;
    let high = vec4<f32>(first_nibbles(word >> 16u)) - 8.0;
    return Eight(scale * low, scale * high);
}
