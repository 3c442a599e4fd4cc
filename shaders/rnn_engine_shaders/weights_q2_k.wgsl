// Weights as numbers from 0 to 3, times the scale of their 16 columns, minus its minimum. Both are numbers of four bits
// times a scale of the block. A block is 256 weights; its figures are five u32, the first with its two scales.

#include split_codes

@group(0) @binding(6) var<storage, read> scales: array<u32>;

fn load_weights(row: u32, eight: u32) -> Eight {
    let bits = (weights[eight_index(row, eight / 2u, 16u)] >> (eight % 2u * 16u)) & 0xffffu;
    let figures = (row + eight / 32u * PANEL) * 5u;
    let part = eight / 2u % 16u;
    let of_part = (scales[figures + 1u + part / 4u] >> (part % 4u * 8u)) & 255u;
    let scale = unpack2x16float(scales[figures]) * vec2<f32>(vec2<i32>(vec2<u32>(of_part & 15u, of_part >> 4u)));
    return affine(eight_bytes(bytes_of_pairs(bits), bytes_of_pairs(bits >> 2u)), scale.x, -scale.y);
}
