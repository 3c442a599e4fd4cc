// Weights as pairs of f16. A block is eight consecutive weights of one matrix row, one vec4<u32>.

#include halves
@group(0) @binding(2) var<storage, read> weights: array<vec4<u32>>;

fn prepare_weights(thread: u32) {}

fn load_weights(row: u32, eight: u32) -> Eight {
    return unpack_halves(weights[row + eight * PANEL]);
}
