// Weights as numbers from 0 to 15, times the scale of their block, plus the block's offset. A u32 holds eight numbers.
// A block is BLOCK_EIGHTS times eight weights.

#include nibbles

@group(0) @binding(2) var<storage, read> weights: array<u32>;
@group(0) @binding(6) var<storage, read> scales: array<u32>; // scale and offset as halves

fn load_weights(row: u32, eight: u32) -> Eight {
    let block = row + eight / BLOCK_EIGHTS * PANEL;
    let word = weights[eight_index(row, eight, BLOCK_EIGHTS)];
    let scale = unpack2x16float(scales[block]);
    let step = vec4<f32>(scale.x);
    let least = vec4<f32>(scale.y);
    let low = vec4<f32>(first_nibbles(word));
    let high = vec4<f32>(first_nibbles(word >> 16u));
    return Eight(fma(step, low, least), fma(step, high, least));
}
