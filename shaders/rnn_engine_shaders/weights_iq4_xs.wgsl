// Weights as indices of levels, times the scale of their 32 columns: a number of six bits, minus 32, times the block's
// scale. A block is 256 weights; a u32 holds eight indices. The figures of a block are its scale, 16 bits with the upper
// two bits of eight numbers, and a word with their low four bits.

#include levels_iq4
#include CODES

@group(0) @binding(2) var<storage, read> weights: array<u32>;
@group(0) @binding(6) var<storage, read> scales: array<vec2<u32>>;

fn load_weights(row: u32, eight: u32) -> Eight {
    let chosen = eight_levels(weights[eight_index(row, eight, 32u)]);
    let figures = scales[row + eight / 32u * PANEL];
    let part = eight / 4u % 8u;
    let high = figures.x >> (16u + part * 2u);
    let of_part = i32(((figures.y >> (part * 4u)) & 15u) | ((high & 3u) << 4u)) - 32;
    let scale = unpack2x16float(figures.x).x * f32(of_part);
    return Eight(scale * chosen.low, scale * chosen.high);
}
