// Weights as signed bytes: a block is 32 of them with one scale, in eights of two u32.

@group(0) @binding(2) var<storage, read> weights: array<vec2<u32>>;
@group(0) @binding(6) var<storage, read> scales: array<f32>;

fn four_bytes(word: u32) -> vec4<f32> {
    return vec4<f32>(vec4<i32>(bitcast<i32>(word)) << vec4<u32>(24u, 16u, 8u, 0u) >> vec4<u32>(24u));
}

fn load_weights(row: u32, eight: u32) -> Eight {
    let block = row + eight / 4u * PANEL;
    let bytes = weights[4u * block + eight % 4u];
    let scale = scales[block];
    return Eight(scale * four_bytes(bytes.x), scale * four_bytes(bytes.y));
}
