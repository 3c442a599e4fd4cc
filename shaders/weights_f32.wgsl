// Weights as they are: eight consecutive weights of one matrix row are two vec4<f32>.

alias Packed = vec4<f32>;

fn load_block(index: u32) -> Eight {
    return Eight(weights[2u * index], weights[2u * index + 1u]);
}
