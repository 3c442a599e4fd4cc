// Weights as f32. A block is eight consecutive weights of one matrix row, two vec4<f32>.

@group(0) @binding(2) var<storage, read> weights: array<vec4<f32>>;

fn prepare_weights(thread: u32) {}

fn load_weights(row: u32, eight: u32) -> Eight {
    let block = row + eight * PANEL;
    return Eight(weights[2u * block], weights[2u * block + 1u]);
}
