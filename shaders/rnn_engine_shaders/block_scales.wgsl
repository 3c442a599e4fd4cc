// One f16 scale for each block, two scales in each u32. A block is one part.

const BLOCK_PARTS = 1u;

#include block_weights

@group(0) @binding(6) var<storage, read> scales: array<u32>;

alias Figures = f32;

fn load_figures(row: u32, eight: u32) -> Figures {
    let block = row + eight / BLOCK_EIGHTS * PANEL;
    return unpack2x16float(scales[block / 2u] >> (block % 2u * 16u)).x;
}

fn figures_of(scale: Figures, part: u32) -> vec2<f32> {
    return vec2<f32>(scale, OFFSET * scale);
}
