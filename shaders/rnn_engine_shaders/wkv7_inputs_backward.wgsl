// The backward pass of RWKV-7's time mix from the recurrence's vectors to what the matmuls have made: keys, in-context
// rate, decay and value residual of a head, in wkv7.wgsl's names. One workgroup per head and token.
// Replaces the gradients in d_projected and d_gates by those of the matmuls' results, without biases and activations.

@group(0) @binding(0) var<storage, read> batch: Batch;
@group(0) @binding(1) var<storage, read> vectors: array<f32>;   // the layer's vectors, packed
@group(0) @binding(2) var<storage, read> projected: array<f32>; // r, k, v: [3, MAX_TOKENS, WIDTH]
@group(0) @binding(3) var<storage, read> gates: array<f32>;     // decay, a, g, v_gate: [4, MAX_TOKENS, WIDTH]
@group(0) @binding(4) var<storage, read> traced: array<f32>;    // see traced_planes.wgsl
@group(0) @binding(5) var<storage, read_write> d_projected: array<f32>; // [3, MAX_TOKENS, WIDTH]
@group(0) @binding(6) var<storage, read_write> d_gates: array<f32>;     // [4, MAX_TOKENS, WIDTH]
@group(0) @binding(7) var<storage, read_write> d_v_first: array<f32>;   // [MAX_TOKENS, WIDTH], the sum over later layers

#include batch
#include traced_planes
#include four_sums_over_workgroup
#include log_near_one

const PLANE = MAX_TOKENS * WIDTH;
const KEY_FLOOR = 1e-12;        // the least number by which wkv7.wgsl divides kk
const DECAY_RATE = -0.606531;   // see segments.wgsl

// Return the gradient of kk, divided by its length.
fn kk_gradient(place: u32) -> f32 {
    return d_gates[PLANE + place] * gates[PLANE + place] - traced[D_REMOVED * PLANE + place];
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let start = group.x * HEAD_SIZE;
    let end = start + HEAD_SIZE;
    let token = group.y * WIDTH;
    let d_bonus = traced[D_BONUS * PLANE + group.y * (WIDTH / HEAD_SIZE) + group.x];

    var own = vec4<f32>(); // the squares of kk before its division, and the product of kk with its gradient
    for (var channel = start + thread; channel < end; channel += THREADS) {
        let place = token + channel;
        let kk = projected[PLANE + place] * vectors[K_K + channel];
        own += vec4<f32>(kk * kk, traced[UNIT_KK * PLANE + place] * kk_gradient(place), 0.0, 0.0);
    }
    let sums = sum_over_workgroup(own, thread);
    let length = max(sqrt(sums.x), KEY_FLOOR);
    let along = select(0.0, sums.y, length > KEY_FLOOR); // a shorter kk is divided by a constant

    for (var channel = start + thread; channel < end; channel += THREADS) {
        let place = token + channel;
        let r = projected[place];
        let k = projected[PLANE + place];
        let a = gates[PLANE + place];
        let kk = traced[UNIT_KK * PLANE + place];
        let d_kk = (kk_gradient(place) - kk * along) / length;
        let d_key = d_projected[PLANE + place] + d_bonus * r * vectors[R_K + channel];
        d_projected[place] += d_bonus * traced[KEY * PLANE + place] * vectors[R_K + channel];
        d_projected[PLANE + place] = d_key * (1.0 + (a - 1.0) * vectors[K_A + channel]) + d_kk * vectors[K_K + channel];
        let d_a = d_gates[PLANE + place] * kk + d_key * k * vectors[K_A + channel];
        d_gates[PLANE + place] = d_a * a * (1.0 - a);

        let exponent = log_near_one(gates[place]); // the decay is exp(DECAY_RATE * sigmoid(w))
        d_gates[place] *= exponent * (1.0 - exponent / DECAY_RATE);

        let dv = d_projected[2u * PLANE + place];
        if IS_FIRST_LAYER {
            if !IS_LAST_LAYER {
                d_projected[2u * PLANE + place] = dv + d_v_first[place];
            }
        } else {
            let v_gate = gates[3u * PLANE + place];
            let later = select(d_v_first[place], 0.0, IS_LAST_LAYER);
            d_v_first[place] = later + dv * v_gate;
            d_projected[2u * PLANE + place] = dv * (1.0 - v_gate);
            d_gates[3u * PLANE + place] *= dv;
        }
    }
}
