// Add the value of a gated channel mix, times the receptance, to the residual stream. One workgroup per token.

#include batch
@group(0) @binding(0) var<storage, read> batch: Batch;
@group(0) @binding(1) var<storage, read> hidden: array<f32>;  // the receptance, from RECEPTANCE on: [T, WIDTH]
@group(0) @binding(2) var<storage, read> value: array<f32>;   // [T, WIDTH]
@group(0) @binding(3) var<storage, read_write> x: array<f32>; // [T, WIDTH]

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    for (var d = thread; d < WIDTH; d += THREADS) {
        let place = group.x * WIDTH + d;
        x[place] += hidden[RECEPTANCE + place] * value[place];
    }
}
