// Add what the adapters of RWKV-6's token shift have computed to the mixes, times the difference to the token before, as
// a matmul with ACTIVATION_SHIFTED_MIX does. One workgroup per token.

#include batch
@group(0) @binding(0) var<storage, read> batch: Batch;
@group(0) @binding(1) var<storage, read> added: array<f32>;       // [ADAPTERS, MAX_TOKENS, WIDTH]
@group(0) @binding(2) var<storage, read_write> mixes: array<f32>; // [1 + ADAPTERS + 1, MAX_TOKENS, WIDTH], the last the difference

const PLANE = MAX_TOKENS * WIDTH;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    for (var d = thread; d < WIDTH; d += THREADS) {
        let place = group.x * WIDTH + d;
        let difference = mixes[(1u + ADAPTERS) * PLANE + place];
        for (var m = 0u; m < ADAPTERS; m++) {
            mixes[(1u + m) * PLANE + place] += added[m * PLANE + place] * difference;
        }
    }
}
