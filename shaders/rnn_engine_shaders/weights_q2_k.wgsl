// Weights as numbers from 0 to 3, times the scale of their 16 columns, minus its minimum. Both are numbers of four bits
// times a scale of the block. A block is 256 weights; its figures are five u32, the first with its two scales.

const PART_EIGHTS = 2u;
const BLOCK_PARTS = 16u;

#include block_weights
#include split_codes

@group(0) @binding(6) var<storage, read> scales: array<u32>;

struct Figures {
    scales: vec2<f32>,
    first: u32, // index of the figures of parts
}

fn load_figures(row: u32, eight: u32) -> Figures {
    let first = (row + eight / BLOCK_EIGHTS * PANEL) * 5u;
    return Figures(unpack2x16float(scales[first]), first + 1u);
}

fn figures_of(figures: Figures, part: u32) -> vec2<f32> {
    let of_part = (scales[figures.first + part / 4u] >> (part % 4u * 8u)) & 255u;
    let scaled = figures.scales * vec2<f32>(vec2<i32>(vec2<u32>(of_part & 15u, of_part >> 4u)));
    return vec2<f32>(scaled.x, -scaled.y);
}

fn load_numbers(row: u32, eight: u32) -> Eight {
    let bits = (weights[eight_index(row, eight / 2u, BLOCK_PARTS)] >> (eight % 2u * 16u)) & 0xffffu;
    return eight_bytes(bytes_of_pairs(bits), bytes_of_pairs(bits >> 2u));
}
