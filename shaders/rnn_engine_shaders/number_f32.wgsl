alias Number = f32;

fn to_numbers(values: vec4<f32>) -> vec4<Number> {
    return values;
}
