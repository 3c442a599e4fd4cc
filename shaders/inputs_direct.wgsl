// Every thread loads the eight inputs of a block itself.

struct Input {
    low: vec4<f32>,
    high: vec4<f32>,
}

fn load_input(index: u32, lane: u32) -> Input {
    return Input(inputs[index], inputs[index + 1u]);
}

fn multiply_add(block: Block, input: Input, sum: f32) -> f32 {
    return sum + dot(block.low, input.low) + dot(block.high, input.high);
}
