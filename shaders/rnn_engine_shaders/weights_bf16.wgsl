// Weights as pairs of bfloat16, the upper halves of floats. A block is eight weights, one vec4<u32>.

@group(0) @binding(2) var<storage, read> weights: array<vec4<u32>>;

fn unpack_pairs(pairs: vec2<u32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(vec4<u32>(pairs.x << 16u, pairs.x & 0xffff0000u, pairs.y << 16u, pairs.y & 0xffff0000u));
}

fn prepare_weights(thread: u32) {}

fn load_weights(row: u32, eight: u32) -> Eight {
    let packed = weights[row + eight * PANEL];
    return Eight(unpack_pairs(packed.xy), unpack_pairs(packed.zw));
}
