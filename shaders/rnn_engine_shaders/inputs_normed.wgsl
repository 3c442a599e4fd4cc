// Load the inputs of eight columns from workgroup memory, which norm_inputs.wgsl has filled.

fn first_eight(split: u32) -> u32 {
    return split;
}

fn share_inputs(own_index: u32) {}

fn load_input(token: u32, index: u32, lane: u32) -> Eight {
    let start = 4u * index;
    return Eight(
        vec4<f32>(inputs[start], inputs[start + 1u], inputs[start + 2u], inputs[start + 3u]),
        vec4<f32>(inputs[start + 4u], inputs[start + 5u], inputs[start + 6u], inputs[start + 7u]),
    );
}
