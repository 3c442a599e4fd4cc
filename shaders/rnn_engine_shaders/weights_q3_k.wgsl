// Weights as numbers from 0 to 7, minus 4, times the scale of their 16 columns: a number of six bits, minus 32, times the
// block's scale. Two u32 hold the low two bits of 32 numbers, and one the third bits. A block is 256 weights. Its figures
// are its scale, two words with the low four bits of 16 numbers and one with their other bits.

const PART_EIGHTS = 2u;
const BLOCK_PARTS = 16u;

#include block_weights
#include split_codes

@group(0) @binding(6) var<storage, read> scales: array<vec4<u32>>;

struct Figures {
    scale: f32,
    of_parts: vec3<u32>,
}

fn load_figures(row: u32, eight: u32) -> Figures {
    let figures = scales[row + eight / BLOCK_EIGHTS * PANEL];
    return Figures(unpack2x16float(figures.x).x, figures.yzw);
}

fn figures_of(figures: Figures, part: u32) -> vec2<f32> {
    let words = figures.of_parts;
    let low = select(words.x, words.y, part % 8u >= 4u) >> (part % 4u * 8u + part / 8u * 4u);
    let high = words.z >> (part % 4u * 8u + part / 4u * 2u);
    let scale = figures.scale * f32(i32((low & 15u) | ((high & 3u) << 4u)) - 32);
    return vec2<f32>(scale, -4.0 * scale);
}

fn load_numbers(row: u32, eight: u32) -> Eight {
    let first = eight_index(row, eight / 4u, BLOCK_EIGHTS / 4u) * 3u;
    let bits = (weights[first + eight / 2u % 2u] >> (eight % 2u * 16u)) & 0xffffu;
    let thirds = (weights[first + 2u] >> (eight % 4u * 8u)) & 255u;
    let even = bytes_of_pairs(bits) | (bytes_of_bits(thirds) << 2u);
    let odd = bytes_of_pairs(bits >> 2u) | (bytes_of_bits(thirds >> 1u) << 2u);
    return eight_bytes(even, odd);
}
