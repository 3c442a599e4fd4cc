// Weights as indices of levels, times the scale of their 32 columns: a number of six bits, minus 32, times the block's
// scale. A block is 256 weights. The figures of a block are its scale, 16 bits with the upper two bits of eight numbers,
// and a word with their low four bits.

const PART_EIGHTS = 4u;
const BLOCK_PARTS = 8u;

#include block_weights
#include levels_iq4
#include codebook4

@group(0) @binding(6) var<storage, read> scales: array<vec2<u32>>;

struct Figures {
    scale: f32,
    of_parts: vec2<u32>,
}

fn load_figures(row: u32, eight: u32) -> Figures {
    let figures = scales[row + eight / BLOCK_EIGHTS * PANEL];
    return Figures(unpack2x16float(figures.x).x, figures);
}

fn figures_of(figures: Figures, part: u32) -> vec2<f32> {
    let low = (figures.of_parts.y >> (part * 4u)) & 15u;
    let high = (figures.of_parts.x >> (16u + part * 2u)) & 3u;
    return vec2<f32>(figures.scale * f32(i32(low | (high << 4u)) - 32), 0.0);
}
