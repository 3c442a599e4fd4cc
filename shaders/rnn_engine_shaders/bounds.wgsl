// Bounds: the least and the greatest possible value of a quantity that is rounded to f32 or depends on unread tokens.

struct Bounds {
    least: f32,
    most: f32,
}

const ULP = 1.1920929e-7;

// Return a bound of the error of `value` = exp(exponent): the 3 + 2 |x| units that WGSL allows, and the effect of the
// exponent's rounding.
fn error_of_exp(value: f32, exponent: f32) -> f32 {
    return value * (4.0 + 6.0 * abs(exponent)) * ULP;
}

// Return a bound of the error of a sum of `count` such values. `errors` is the sum of their own errors.
fn error_of_sum(sum: f32, errors: f32, count: u32) -> f32 {
    return errors + f32(count + 4u) * ULP * sum;
}

fn widen(bounds: Bounds) -> Bounds {
    return Bounds(bounds.least * (1.0 - 4.0 * ULP), bounds.most * (1.0 + 4.0 * ULP));
}

// Return bounds of the sum of the (1 / temperature)-th powers of `count` numbers. Their sum is `mass`, and each is at
// most exp(ceiling). The same function as `bound_powers` of rnn_engine/sampling/ranking.py.
fn bound_powers(mass: Bounds, count: f32, ceiling: f32, temperature: f32) -> Bounds {
    let is_cold = temperature <= 1.0;
    let least = power_bounds(mass.least, count, ceiling, temperature, is_cold).least;
    return Bounds(least, power_bounds(mass.most, count, ceiling, temperature, !is_cold).most);
}

// Return bounds of the same sum for numbers that are all equal if `is_even`, and otherwise as unequal as possible.
fn power_bounds(mass: f32, count: f32, ceiling: f32, temperature: f32, is_even: bool) -> Bounds {
    if mass <= 0.0 {
        return Bounds(0.0, 0.0);
    }
    let parts = select(vec2<f32>(1.0, ceiling), vec2<f32>(count, 0.0), is_even);
    let first = log(mass / parts.x) / select(1.0, temperature, is_even);
    let second = select(parts.y / temperature - parts.y, log(parts.x), is_even);
    let error = (16.0 + 8.0 / temperature + 16.0 * (abs(first) + abs(second) + abs(parts.y) / temperature)) * ULP;
    let value = exp(first + second);
    return Bounds(value * max(1.0 - error, 0.0), value * (1.0 + error));
}
