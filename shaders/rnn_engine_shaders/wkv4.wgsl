// The RWKV-4 recurrence over one run, one thread per channel: an average of all v so far, with decaying weights e^k.
// Workgroups: (ceil(WIDTH / THREADS), runs).
//
//   out    = r * (aa e^pp + v e^(u + k)) / (bb e^pp + e^(u + k));
//   aa e^pp, bb e^pp  =  aa e^(pp + decay) + v e^k,  bb e^(pp + decay) + e^k.
//
// The greater exponent is factored out of each sum, and kept as pp, so that nothing overflows.

#include batch
@group(0) @binding(0) var<storage, read> batch: Batch;
@group(0) @binding(1) var<storage, read> vectors: array<f32>;      // the layer's vectors, packed
@group(0) @binding(2) var<storage, read> projected: array<f32>;    // sigmoid(r), k, v: [3, MAX_TOKENS, WIDTH]
@group(0) @binding(3) var<storage, read_write> state: array<f32>;  // [slots, STATE_STRIDE]
@group(0) @binding(4) var<storage, read_write> mixed: array<f32>;  // [T, WIDTH]

const PLANE = MAX_TOKENS * WIDTH;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let channel = group.x * THREADS + thread;
    if channel >= WIDTH {
        return;
    }
    let run = batch.runs[group.y];
    let decay = vectors[DECAY + channel];
    let u = vectors[U + channel];
    let start = run.slot * STATE_STRIDE + channel;
    var aa = state[start + AA_OFFSET];
    var bb = state[start + BB_OFFSET];
    var pp = state[start + PP_OFFSET];

    for (var token = run.start; token < run.start + run.length; token++) {
        let place = token * WIDTH + channel;
        let k = projected[PLANE + place];
        let v = projected[2u * PLANE + place];

        let own = max(pp, u + k);
        let own_old = exp(pp - own);
        let own_new = exp(u + k - own);
        mixed[place] = projected[place] * (own_old * aa + own_new * v) / (own_old * bb + own_new);

        let next = max(pp + decay, k);
        let old = exp(pp + decay - next);
        let new_weight = exp(k - next);
        aa = old * aa + new_weight * v;
        bb = old * bb + new_weight;
        pp = next;
    }

    state[start + AA_OFFSET] = aa;
    state[start + BB_OFFSET] = bb;
    state[start + PP_OFFSET] = pp;
}
