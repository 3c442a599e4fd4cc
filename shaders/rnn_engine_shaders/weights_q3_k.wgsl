// Weights as numbers from 0 to 7, minus 4, times the scale of their 16 columns: a number of six bits, minus 32, times the
// block's scale. Two u32 hold the low two bits of 32 numbers, and one the third bits. A block is 256 weights. Its figures
// are its scale, two words with the low four bits of 16 numbers and one with their other bits.

#include split_codes

@group(0) @binding(6) var<storage, read> scales: array<vec4<u32>>;

fn load_weights(row: u32, eight: u32) -> Eight {
    let first = eight_index(row, eight / 4u, 8u) * 3u;
    let bits = (weights[first + eight / 2u % 2u] >> (eight % 2u * 16u)) & 0xffffu;
    let thirds = (weights[first + 2u] >> (eight % 4u * 8u)) & 255u;
    let even = bytes_of_pairs(bits) | (bytes_of_bits(thirds) << 2u);
    let odd = bytes_of_pairs(bits >> 2u) | (bytes_of_bits(thirds >> 1u) << 2u);
    let figures = scales[row + eight / 32u * PANEL];
    let part = eight / 2u % 16u;
    let low = select(figures.y, figures.z, part % 8u >= 4u) >> (part % 4u * 8u + part / 8u * 4u);
    let high = figures.w >> (part % 4u * 8u + part / 4u * 2u);
    let of_part = i32((low & 15u) | ((high & 3u) << 4u)) - 32;
    let scale = unpack2x16float(figures.x).x * f32(of_part);
    return affine(eight_bytes(even, odd), scale, -4.0 * scale);
}
