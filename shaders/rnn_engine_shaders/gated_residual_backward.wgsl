// The backward pass of gated_residual.wgsl, and of the receptance's sigmoid. One workgroup per token.

#include batch
@group(0) @binding(0) var<storage, read> batch: Batch;
@group(0) @binding(1) var<storage, read> hidden: array<f32>; // the receptance, from RECEPTANCE on: [T, WIDTH]
@group(0) @binding(2) var<storage, read> dx: array<f32>;     // [T, WIDTH]
@group(0) @binding(3) var<storage, read_write> value: array<f32>;    // [T, WIDTH]; replaced by its gradient
@group(0) @binding(4) var<storage, read_write> d_hidden: array<f32>; // the sigmoid's argument, from RECEPTANCE on

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    for (var d = thread; d < WIDTH; d += THREADS) {
        let place = group.x * WIDTH + d;
        let receptance = hidden[RECEPTANCE + place];
        let gradient = dx[place] * receptance;
        d_hidden[RECEPTANCE + place] = gradient * value[place] * (1.0 - receptance);
        value[place] = gradient;
    }
}
