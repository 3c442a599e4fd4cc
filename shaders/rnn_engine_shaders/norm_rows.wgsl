// The last norm, on the tokens that are rows. One workgroup per row.
// A run of length 0 was ended by a draw. Its row does not change.

#include batch
@group(0) @binding(0) var<storage, read> batch: Batch;
@group(0) @binding(1) var<storage, read> x: array<f32>;            // [T, WIDTH]
@group(0) @binding(2) var<storage, read> vectors: array<f32>;      // ln_out's weight, then any bias
@group(0) @binding(3) var<storage, read_write> normed: array<f32>; // [R, WIDTH]

#include norm

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group.x;
    let token = batch.rows[row].token;
    if batch.runs[batch.tokens[token].run].length > 0u { // no early return: see embed.wgsl
        let start = token * WIDTH;
        let stats = mean_and_scale(start, thread);
        for (var d = thread; d < WIDTH; d += THREADS) {
            normed[row * WIDTH + d] = (x[start + d] - stats.x) * stats.y * vectors[d] + bias_of_norm(WIDTH + d);
        }
    }
}
