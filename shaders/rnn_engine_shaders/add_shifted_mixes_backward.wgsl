// The backward pass of add_shifted_mixes.wgsl. One workgroup per token.

#include batch
@group(0) @binding(0) var<storage, read> batch: Batch;
@group(0) @binding(1) var<storage, read> mixes: array<f32>;         // [1 + ADAPTERS + 1, MAX_TOKENS, WIDTH], the last the difference
@group(0) @binding(2) var<storage, read_write> added: array<f32>;   // [ADAPTERS, MAX_TOKENS, WIDTH]; replaced by its gradient
@group(0) @binding(3) var<storage, read_write> d_mixes: array<f32>; // as `mixes`; the gradient of the difference is written

const PLANE = MAX_TOKENS * WIDTH;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    for (var d = thread; d < WIDTH; d += THREADS) {
        let place = group.x * WIDTH + d;
        let difference = mixes[(1u + ADAPTERS) * PLANE + place];
        var d_difference = 0.0;
        for (var m = 0u; m < ADAPTERS; m++) {
            let gradient = d_mixes[(1u + m) * PLANE + place];
            d_difference += gradient * added[m * PLANE + place];
            added[m * PLANE + place] = gradient * difference;
        }
        d_mixes[(1u + ADAPTERS) * PLANE + place] = d_difference;
    }
}
