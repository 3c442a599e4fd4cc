// Copy the input of the first layer into a buffer for later layers. One workgroup per token.

@group(0) @binding(0) var<storage, read> x: array<f32>;            // [T, WIDTH]
@group(0) @binding(1) var<storage, read_write> kept: array<f32>;   // from START on [T, WIDTH]

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    for (var d = thread; d < WIDTH; d += THREADS) {
        kept[START + group.x * WIDTH + d] = x[group.x * WIDTH + d];
    }
}
