// Weights as signed bytes times the scale of their block. A block is 32 weights; two u32 hold eight.

#include block_scales

@group(0) @binding(2) var<storage, read> weights: array<vec2<u32>>;

fn four_bytes(word: u32) -> vec4<f32> {
    return vec4<f32>((vec4<i32>(bitcast<i32>(word)) << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u));
}

fn prepare_weights(thread: u32) {}

fn load_weights(row: u32, eight: u32) -> Eight {
    let block = row + eight / 4u * PANEL;
    let bytes = weights[eight_index(row, eight, 4u)];
    let scale = block_scale(block);
    return Eight(scale * four_bytes(bytes.x), scale * four_bytes(bytes.y));
}
