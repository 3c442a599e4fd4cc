// Weights as numbers from 0 to 7, minus 4, times the scale of their 16 columns: a number of six bits, minus 32, times the
// block's scale. Two u32 hold the low two bits of 32 numbers, and one the third bits. A block is 256 weights. Its figures
// are its scale, two words with the low four bits of 16 numbers and one with their other bits.

#include two_bits

@group(0) @binding(6) var<storage, read> scales: array<vec4<u32>>;

// Return the bits 0, 2, 4 and 6 as bit 2 of a byte each.
fn third_bits(bits: u32) -> u32 {
    return (((bits & 0x55u) * 0x41041u) & 0x01010101u) << 2u;
}

fn load_weights(row: u32, eight: u32) -> Eight {
    let first = eight_index(row, eight / 4u, 8u) * 3u;
    let bits = (weights[first + eight / 2u % 2u] >> (eight % 2u * 16u)) & 0xffffu;
    let thirds = (weights[first + 2u] >> (eight % 4u * 8u)) & 255u;
    let even = bytes_of_pairs(bits) | third_bits(thirds);
    let odd = bytes_of_pairs(bits >> 2u) | third_bits(thirds >> 1u);
    let figures = scales[row + eight / 32u * PANEL];
    let part = eight / 2u % 16u;
    let low = select(figures.y, figures.z, part % 8u >= 4u) >> (part % 4u * 8u + part / 8u * 4u);
    let high = figures.w >> (part % 4u * 8u + part / 4u * 2u);
    let of_part = i32((low & 15u) | ((high & 3u) << 4u)) - 32;
    let scale = unpack2x16float(figures.x).x * f32(of_part);
    return affine(eight_bytes(even, odd), scale, -4.0 * scale);
}
