enable f16;
alias Number = f16;

// What is beyond the range of halves becomes their greatest.
fn to_numbers(values: vec4<f32>) -> vec4<Number> {
    return vec4<f16>(clamp(values, vec4<f32>(-65504.0), vec4<f32>(65504.0)));
}
