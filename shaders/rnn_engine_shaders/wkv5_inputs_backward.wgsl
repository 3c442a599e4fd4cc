// The backward pass of the time mix of RWKV-5 and RWKV-6 from the recurrence's vectors to what the matmuls have made: the
// bonus's part of dr and dk, and RWKV-6's decay. One workgroup per head and token.

#include batch
@group(0) @binding(0) var<storage, read> batch: Batch;
@group(0) @binding(1) var<storage, read> vectors: array<f32>;   // the layer's vectors, packed
@group(0) @binding(2) var<storage, read> projected: array<f32>; // r, k: [2, MAX_TOKENS, WIDTH]
@group(0) @binding(3) var<storage, read> gates: array<f32>;     // the decay, from DECAY_START on
@group(0) @binding(4) var<storage, read> traced: array<f32>;    // see traced_planes.wgsl
@group(0) @binding(5) var<storage, read_write> d_projected: array<f32>; // dr, dk: [2, MAX_TOKENS, WIDTH]
@group(0) @binding(6) var<storage, read_write> d_gates: array<f32>;     // [MAX_TOKENS, WIDTH], decay * d_decay

#include traced_planes

const PLANE = MAX_TOKENS * WIDTH;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let start = group.x * HEAD_SIZE;
    let d_bonus = traced[D_BONUS * PLANE + group.y * (WIDTH / HEAD_SIZE) + group.x];
    for (var channel = start + thread; channel < start + HEAD_SIZE; channel += THREADS) {
        let place = group.y * WIDTH + channel;
        d_projected[place] += d_bonus * vectors[U + channel] * projected[PLANE + place];
        d_projected[PLANE + place] += d_bonus * vectors[U + channel] * projected[place];
        // The decay is exp(-exp(w)). One that has become 0 has no gradient, up to rounding.
        d_gates[place] *= log(max(gates[DECAY_START + group.y * DECAY_STRIDE + channel], 1e-30));
    }
}
