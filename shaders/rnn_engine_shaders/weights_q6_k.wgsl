// Weights as numbers from 0 to 63, minus 32, times the scale of their 16 columns: a signed byte times the block's scale.
// Two u32 hold the low four bits of 16 numbers, and one the other bits. A block is 256 weights; its figures are five u32,
// the first with its scale.

#include split_codes

@group(0) @binding(6) var<storage, read> scales: array<u32>;

fn load_weights(row: u32, eight: u32) -> Eight {
    let first = eight_index(row, eight / 2u, 16u) * 3u;
    let word = weights[first + eight % 2u];
    let bits = (weights[first + 2u] >> (eight % 2u * 16u)) & 0xffffu;
    let even = (word & 0x0f0f0f0fu) | (bytes_of_pairs(bits) << 4u);
    let odd = ((word >> 4u) & 0x0f0f0f0fu) | (bytes_of_pairs(bits >> 2u) << 4u);
    let figures = (row + eight / 32u * PANEL) * 5u;
    let part = eight / 2u % 16u;
    let of_part = bitcast<i32>(scales[figures + 1u + part / 4u] << (24u - part % 4u * 8u)) >> 24u;
    let scale = unpack2x16float(scales[figures]).x * f32(of_part);
    return affine(eight_bytes(even, odd), scale, -32.0 * scale);
}
