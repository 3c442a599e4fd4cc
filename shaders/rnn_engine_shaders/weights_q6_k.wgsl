// Weights as numbers from 0 to 63, minus 32, times the scale of their 16 columns: a signed byte times the block's scale.
// Two u32 hold the low four bits of 16 numbers, and one the other bits. A block is 256 weights; its figures are five u32,
// the first with its scale.

#include CODES

@group(0) @binding(2) var<storage, read> weights: array<u32>;
@group(0) @binding(6) var<storage, read> scales: array<u32>;

fn prepare_weights(thread: u32) {}

// Return the two bits from each of the bits 0, 4, 8 and 12 on as the bits 4 and 5 of a byte each.
fn upper_bits(bits: u32) -> u32 {
    let halves = (bits | (bits << 8u)) & 0x00ff00ffu;
    return ((halves | (halves << 4u)) & 0x03030303u) << 4u;
}

fn load_weights(row: u32, eight: u32) -> Eight {
    let first = eight_index(row, eight / 2u, 16u) * 3u;
    let word = weights[first + eight % 2u];
    let bits = (weights[first + 2u] >> (eight % 2u * 16u)) & 0xffffu;
    let even = (word & 0x0f0f0f0fu) | upper_bits(bits);
    let odd = ((word >> 4u) & 0x0f0f0f0fu) | upper_bits(bits >> 2u);
    let codes = eight_bytes(even, odd);
    let figures = (row + eight / 32u * PANEL) * 5u;
    let part = eight / 2u % 16u;
    let of_part = bitcast<i32>(scales[figures + 1u + part / 4u] << (24u - part % 4u * 8u)) >> 24u;
    let scale = unpack2x16float(scales[figures]).x * f32(of_part);
    let step = vec4<f32>(scale);
    let least = vec4<f32>(-32.0 * scale); // exact, so a weight is rounded once
    return Eight(fma(step, codes.low, least), fma(step, codes.high, least));
}
