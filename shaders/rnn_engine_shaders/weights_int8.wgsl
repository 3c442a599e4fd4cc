// Weights as bytes: 0 is the least weight of the block, 255 the greatest. A block is 128 weights; two u32 hold eight.

const PART_EIGHTS = 16u;
const BLOCK_PARTS = 1u;

#include block_weights

@group(0) @binding(2) var<storage, read> weights: array<vec2<u32>>;
@group(0) @binding(6) var<storage, read> ranges: array<u32>; // the least and the greatest weight as halves

alias Figures = vec2<f32>;

fn load_figures(row: u32, eight: u32) -> Figures {
    let range = unpack2x16float(ranges[row + eight / BLOCK_EIGHTS * PANEL]);
    return vec2<f32>((range.y - range.x) * (1.0 / 255.0), range.x);
}

fn figures_of(figures: Figures, part: u32) -> vec2<f32> {
    return figures;
}

// Converted as signed numbers, since some devices convert unsigned ones slowly.
fn four_bytes(word: u32) -> vec4<f32> {
    return vec4<f32>(vec4<i32>((vec4<u32>(word) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(255u)));
}

fn prepare_weights(thread: u32) {}

fn load_numbers(row: u32, eight: u32) -> Eight {
    let bytes = weights[eight_index(row, eight, BLOCK_EIGHTS)];
    return Eight(four_bytes(bytes.x), four_bytes(bytes.y));
}
