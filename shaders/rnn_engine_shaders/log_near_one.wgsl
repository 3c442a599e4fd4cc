// The logarithm of a number up to 1. WGSL allows the built-in one an error of 2^-21, which is much for numbers near 1.

fn log_near_one(value: f32) -> f32 {
    let less = value - 1.0; // exact if it is small
    return select(log(value), less * (1.0 - less * (0.5 - less / 3.0)), less > -0.03125);
}
