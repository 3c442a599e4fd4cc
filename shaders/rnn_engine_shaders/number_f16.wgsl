enable f16;
alias Number = f16;

// Values beyond the range of f16 become its greatest, with the same sign.
fn to_numbers(values: vec4<f32>) -> vec4<Number> {
    return vec4<f16>(clamp(values, vec4<f32>(-65504.0), vec4<f32>(65504.0)));
}
