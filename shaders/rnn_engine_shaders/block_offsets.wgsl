// A scale and an offset, both f16, for each block. A block is one part.

const BLOCK_PARTS = 1u;

#include block_weights

@group(0) @binding(6) var<storage, read> scales: array<u32>;

alias Figures = vec2<f32>;

fn load_figures(row: u32, eight: u32) -> Figures {
    return unpack2x16float(scales[row + eight / BLOCK_EIGHTS * PANEL]);
}

fn figures_of(figures: Figures, part: u32) -> vec2<f32> {
    return figures;
}
