// The bytes of weights_int8.wgsl less 128, since products_int8.wgsl needs signed bytes.
// A weight is its signed byte times a step, plus an offset.

#include weights_int8

fn load_bytes(row: u32, eight: u32) -> vec2<u32> {
    return weights[eight_index(row, eight, BLOCK_EIGHTS)] ^ vec2<u32>(0x80808080u);
}

alias Scale = vec2<f32>; // the step and the offset

fn load_scale(row: u32, eight: u32) -> Scale {
    let figures = load_figures(row, eight);
    return Scale(figures.x, fma(128.0, figures.x, figures.y));
}

fn add_block(scale: Scale, of_inputs: vec2<f32>, block_sum: f32, sum: f32) -> f32 {
    return fma(scale.y, of_inputs.y, fma(scale.x * of_inputs.x, block_sum, sum));
}
