// Eight consecutive numbers, the unit in which kernels load weights.

const PANEL = 8u; // rows of a panel: see segments.wgsl

struct Eight {
    low: vec4<f32>,
    high: vec4<f32>,
}

fn sum_of(eight: Eight) -> f32 {
    let sums = eight.low + eight.high;
    return sums.x + sums.y + sums.z + sums.w;
}

fn multiply_add(a: Eight, b: Eight, sum: f32) -> f32 {
    let low = fma(a.low.w, b.low.w, fma(a.low.z, b.low.z, fma(a.low.y, b.low.y, fma(a.low.x, b.low.x, sum))));
    return fma(a.high.w, b.high.w, fma(a.high.z, b.high.z, fma(a.high.y, b.high.y, fma(a.high.x, b.high.x, low))));
}

// Return eight numbers times a scale, plus an offset, each rounded once if the products are exact.
fn affine(numbers: Eight, scale: f32, offset: f32) -> Eight {
    let step = vec4<f32>(scale);
    let least = vec4<f32>(offset);
    return Eight(fma(step, numbers.low, least), fma(step, numbers.high, least));
}

// Return the index, among the eights of all rows, of a row's eight with the number `eight`. The blocks of a panel are
// interleaved: the first eight of each of its 8 rows, then the second of each, and so on. So neighbouring rows are also
// neighbours in memory.
fn eight_index(row: u32, eight: u32, block_eights: u32) -> u32 {
    return (row / PANEL * block_eights + eight) * PANEL + row % PANEL;
}
