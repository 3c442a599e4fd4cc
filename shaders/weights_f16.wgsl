// Weights as pairs of f16. A block is eight consecutive weights of one matrix row, one vec4<u32>.

@group(0) @binding(2) var<storage, read> weights: array<vec4<u32>>;

fn prepare_weights(thread: u32) {}

fn load_weights(row: u32, eight: u32) -> Eight {
    let packed = weights[row + eight * PANEL];
    return Eight(
        vec4<f32>(unpack2x16float(packed.x), unpack2x16float(packed.y)),
        vec4<f32>(unpack2x16float(packed.z), unpack2x16float(packed.w)),
    );
}
