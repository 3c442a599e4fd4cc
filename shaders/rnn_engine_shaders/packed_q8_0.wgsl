// The bytes of weights_q8_0.wgsl and their scale, in the form that products_int8.wgsl needs.

#include weights_q8_0

alias Scale = f32;

fn load_bytes(row: u32, eight: u32) -> vec2<u32> {
    return weights[eight_index(row, eight, BLOCK_EIGHTS)];
}

fn load_scale(row: u32, eight: u32) -> Scale {
    return load_figures(row, eight);
}

fn add_block(scale: Scale, of_inputs: vec2<f32>, block_sum: f32, sum: f32) -> f32 {
    return fma(scale * of_inputs.x, block_sum, sum);
}
