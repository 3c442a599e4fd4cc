// The figures of a block of 256 weights in parts of 32: two f16 scales, then 8 scales and 8 minima of 6 bits in 12 bytes.
// The first four of each are in the low bits of a byte of their own; the others share the last four bytes and the high
// bits of the first eight.

const PART_EIGHTS = 4u;
const BLOCK_PARTS = 8u;

#include block_weights

@group(0) @binding(6) var<storage, read> scales: array<vec4<u32>>;

struct Figures {
    scales: vec2<f32>,
    of_parts: vec3<u32>,
}

fn load_figures(row: u32, eight: u32) -> Figures {
    let figures = scales[row + eight / BLOCK_EIGHTS * PANEL];
    return Figures(unpack2x16float(figures.x), figures.yzw);
}

fn figures_of(figures: Figures, part: u32) -> vec2<f32> {
    let bytes = (figures.of_parts >> vec3<u32>(part % 4u * 8u)) & vec3<u32>(255u);
    let early = bytes.xy & vec2<u32>(63u);
    let late = vec2<u32>(bytes.z & 15u, bytes.z >> 4u) | ((bytes.xy >> vec2<u32>(2u)) & vec2<u32>(48u));
    let scaled = figures.scales * vec2<f32>(vec2<i32>(select(early, late, part >= 4u)));
    return vec2<f32>(scaled.x, -scaled.y);
}
