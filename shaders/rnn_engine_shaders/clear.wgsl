// Set the gradient of the residual stream to zero. One workgroup per token.

@group(0) @binding(0) var<storage, read_write> dx: array<f32>; // [T, WIDTH]

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    for (var d = thread; d < WIDTH; d += THREADS) {
        dx[group.x * WIDTH + d] = 0.0;
    }
}
