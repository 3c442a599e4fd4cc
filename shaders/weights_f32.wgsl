// Weights as they are: eight consecutive weights of one matrix row are two vec4<f32>.

alias Packed = vec4<f32>;

struct Block {
    low: vec4<f32>,
    high: vec4<f32>,
}

fn load_block(index: u32) -> Block {
    return Block(weights[2u * index], weights[2u * index + 1u]);
}
