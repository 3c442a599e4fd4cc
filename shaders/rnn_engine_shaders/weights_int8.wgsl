// Weights as bytes: 0 is the least weight of the block, 255 the greatest. A block is 128 weights; two u32 hold eight.

@group(0) @binding(2) var<storage, read> weights: array<vec2<u32>>;
@group(0) @binding(6) var<storage, read> ranges: array<u32>; // the least and the greatest weight as halves

// Converted as signed numbers, since some devices convert unsigned ones slowly.
fn four_bytes(word: u32) -> vec4<f32> {
    return vec4<f32>(vec4<i32>((vec4<u32>(word) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(255u)));
}

fn prepare_weights(thread: u32) {}

fn load_weights(row: u32, eight: u32) -> Eight {
    let block = row + eight / 16u * PANEL;
    let bytes = weights[eight_index(row, eight, 16u)];
    let range = unpack2x16float(ranges[block]);
    let least = vec4<f32>(range.x);
    let step = vec4<f32>((range.y - range.x) * (1.0 / 255.0));
    return Eight(fma(step, four_bytes(bytes.x), least), fma(step, four_bytes(bytes.y), least));
}
