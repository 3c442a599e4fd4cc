// Eight consecutive numbers, as which weights are loaded.

const PANEL = 8u; // rows of a panel, in which matrices are stored: see segments.wgsl

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

// Where the `eight` of a row lies among those of all rows, if the blocks of a panel are interleaved: the first eight of
// its 8 rows, then the second, and so on. Rows that are side by side are then read side by side.
fn eight_index(row: u32, eight: u32, block_eights: u32) -> u32 {
    return (row / PANEL * block_eights + eight) * PANEL + row % PANEL;
}
