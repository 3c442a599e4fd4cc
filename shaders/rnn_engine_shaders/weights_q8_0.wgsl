// Weights as signed bytes times the scale of their block. A block is 32 weights; two u32 hold eight.

const PART_EIGHTS = 4u;
const OFFSET = 0.0;

#include block_scales

@group(0) @binding(2) var<storage, read> weights: array<vec2<u32>>;

fn four_bytes(word: u32) -> vec4<f32> {
    return vec4<f32>((vec4<i32>(bitcast<i32>(word)) << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u));
}

fn prepare_weights(thread: u32) {}

fn load_numbers(row: u32, eight: u32) -> Eight {
    let bytes = weights[eight_index(row, eight, BLOCK_EIGHTS)];
    return Eight(four_bytes(bytes.x), four_bytes(bytes.y));
}
