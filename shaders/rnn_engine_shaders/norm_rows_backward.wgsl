// The backward pass of norm_rows.wgsl: the gradient of the last layer's output at the tokens that are rows.
// One workgroup per row. With n = (x - mean) * scale and g = d_normed * weight:
//   dx = scale * (g - mean of g - n * mean of (g * n))

#include batch
@group(0) @binding(0) var<storage, read> batch: Batch;
@group(0) @binding(1) var<storage, read> x: array<f32>;        // [T, WIDTH]
@group(0) @binding(2) var<storage, read> vectors: array<f32>;  // ln_out's weight, then its bias
@group(0) @binding(3) var<storage, read> d_normed: array<f32>; // [R, WIDTH]
@group(0) @binding(4) var<storage, read_write> dx: array<f32>; // [T, WIDTH]

#include norm

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group.x * WIDTH;
    let start = batch.rows[group.x].token * WIDTH;
    let stats = mean_and_scale(start, thread);
    var sum = 0.0;
    var product = 0.0;
    for (var d = thread; d < WIDTH; d += THREADS) {
        let gradient = d_normed[row + d] * vectors[d];
        sum += gradient;
        product += gradient * (x[start + d] - stats.x) * stats.y;
    }
    let mean = sum_over_workgroup(sum, thread) / f32(WIDTH);
    let slope = sum_over_workgroup(product, thread) / f32(WIDTH);
    for (var d = thread; d < WIDTH; d += THREADS) {
        let normed = (x[start + d] - stats.x) * stats.y;
        dx[start + d] = (d_normed[row + d] * vectors[d] - mean - normed * slope) * stats.y;
    }
}
