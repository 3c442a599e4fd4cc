// Weights as numbers from 0 to 63, minus 32, times the scale of their 16 columns: a signed byte times the block's scale.
// Two u32 hold the low four bits of 16 numbers, and one the other bits. A block is 256 weights; its figures are five u32,
// the first with its scale.

const PART_EIGHTS = 2u;
const BLOCK_PARTS = 16u;

#include block_weights
#include split_codes

@group(0) @binding(6) var<storage, read> scales: array<u32>;

struct Figures {
    scale: f32,
    first: u32, // index of the scales of parts
}

fn load_figures(row: u32, eight: u32) -> Figures {
    let first = (row + eight / BLOCK_EIGHTS * PANEL) * 5u;
    return Figures(unpack2x16float(scales[first]).x, first + 1u);
}

fn figures_of(figures: Figures, part: u32) -> vec2<f32> {
    let of_part = bitcast<i32>(scales[figures.first + part / 4u] << (24u - part % 4u * 8u)) >> 24u;
    let scale = figures.scale * f32(of_part);
    return vec2<f32>(scale, -32.0 * scale);
}

fn load_numbers(row: u32, eight: u32) -> Eight {
    let first = eight_index(row, eight / 2u, BLOCK_PARTS) * 3u;
    let word = weights[first + eight % 2u];
    let bits = (weights[first + 2u] >> (eight % 2u * 16u)) & 0xffffu;
    let even = (word & 0x0f0f0f0fu) | (bytes_of_pairs(bits) << 4u);
    let odd = ((word >> 4u) & 0x0f0f0f0fu) | (bytes_of_pairs(bits >> 2u) << 4u);
    return eight_bytes(even, odd);
}
