// Functions that are applied to the sums of a matmul.

fn sigmoid(value: f32) -> f32 {
    return 1.0 / (1.0 + exp(-value));
}

// Return the decay of RWKV-7 for the output of its adapter.
fn decay(value: f32) -> f32 {
    return exp(-0.606531 * sigmoid(value));
}
