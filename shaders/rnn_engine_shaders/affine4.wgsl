// Weights as numbers from 0 to 15, times the scale of their block, plus the block's offset. A u32 holds eight numbers.
// A block is BLOCK_EIGHTS times eight weights.

#include CODES

@group(0) @binding(2) var<storage, read> weights: array<u32>;
@group(0) @binding(6) var<storage, read> scales: array<u32>; // scale and offset as halves

fn prepare_weights(thread: u32) {}

fn load_weights(row: u32, eight: u32) -> Eight {
    let block = row + eight / BLOCK_EIGHTS * PANEL;
    let word = weights[eight_index(row, eight, BLOCK_EIGHTS)];
    let scale = unpack2x16float(scales[block]);
    let step = vec4<f32>(scale.x);
    let least = vec4<f32>(scale.y);
    let codes = eight_nibbles(word);
    return Eight(fma(step, codes.low, least), fma(step, codes.high, least));
}
