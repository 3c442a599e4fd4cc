// The backward pass of RWKV-7's time mix from its output to y: gate, bonus and group norm of a head, in wkv7.wgsl's names.
// Also writes the vectors of the recurrence that its backward pass reads. One workgroup per head and token.

@group(0) @binding(0) var<storage, read> batch: Batch;
@group(0) @binding(1) var<storage, read> vectors: array<f32>;   // the layer's vectors, packed
@group(0) @binding(2) var<storage, read> projected: array<f32>; // r, k, v: [3, MAX_TOKENS, WIDTH]
@group(0) @binding(3) var<storage, read> gates: array<f32>;     // decay, a, g, v_gate: [4, MAX_TOKENS, WIDTH]
@group(0) @binding(4) var<storage, read> v_first: array<f32>;   // [MAX_TOKENS, WIDTH]
@group(0) @binding(5) var<storage, read_write> traced: array<f32>;      // see traced_planes.wgsl
@group(0) @binding(6) var<storage, read_write> d_projected: array<f32>; // [3, MAX_TOKENS, WIDTH]; the bonus's part of dv
@group(0) @binding(7) var<storage, read_write> d_gates: array<f32>;     // [4, MAX_TOKENS, WIDTH]; dg, and dv's factor in v_gate

#include batch
#include traced_planes
#include four_sums_over_workgroup

const PLANE = MAX_TOKENS * WIDTH;

fn value_at(place: u32) -> f32 {
    let v = projected[2u * PLANE + place];
    if IS_FIRST_LAYER {
        return v;
    }
    return v + (v_first[place] - v) * gates[3u * PLANE + place];
}

fn key_at(place: u32, channel: u32) -> f32 {
    return projected[PLANE + place] * (1.0 + (gates[PLANE + place] - 1.0) * vectors[K_A + channel]);
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let start = group.x * HEAD_SIZE;
    let end = start + HEAD_SIZE;
    let token = group.y * WIDTH;

    var own = vec4<f32>(); // y, r * k * r_k, the squares of kk before its division, the gradient of the bonus
    for (var channel = start + thread; channel < end; channel += THREADS) {
        let place = token + channel;
        let kk = projected[PLANE + place] * vectors[K_K + channel];
        let bonus = projected[place] * key_at(place, channel) * vectors[R_K + channel];
        let ungated = traced[D_Y * PLANE + place] * gates[2u * PLANE + place];
        own += vec4<f32>(traced[TRACED_Y * PLANE + place], bonus, kk * kk, ungated * value_at(place));
    }
    let sums = sum_over_workgroup(own, thread);
    let mean = sums.x / f32(HEAD_SIZE);
    let scale = 1.0 / max(sqrt(sums.z), 1e-12);

    own = vec4<f32>(); // the squares of y - mean, the gradient of the normalised y, and its product with y - mean
    for (var channel = start + thread; channel < end; channel += THREADS) {
        let place = token + channel;
        let deviation = traced[TRACED_Y * PLANE + place] - mean;
        let gradient = traced[D_Y * PLANE + place] * gates[2u * PLANE + place] * vectors[GROUP_NORM_WEIGHT + channel];
        own += vec4<f32>(deviation * deviation, gradient, gradient * deviation, 0.0);
    }
    let moments = sum_over_workgroup(own, thread) / f32(HEAD_SIZE);
    let norm = inverseSqrt(moments.x + EPSILON);

    for (var channel = start + thread; channel < end; channel += THREADS) {
        let place = token + channel;
        let v = value_at(place);
        let gate = gates[2u * PLANE + place];
        let gradient = traced[D_Y * PLANE + place];
        let normed = (traced[TRACED_Y * PLANE + place] - mean) * norm;
        let weight = vectors[GROUP_NORM_WEIGHT + channel];
        d_gates[2u * PLANE + place] = gradient * (normed * weight + vectors[GROUP_NORM_BIAS + channel] + sums.y * v);
        d_projected[2u * PLANE + place] = gradient * gate * sums.y;
        if !IS_FIRST_LAYER {
            let v_gate = gates[3u * PLANE + place];
            d_gates[3u * PLANE + place] = (v_first[place] - projected[2u * PLANE + place]) * v_gate * (1.0 - v_gate);
        }
        traced[D_Y * PLANE + place] = (gradient * gate * weight - moments.y - normed * moments.z * norm) * norm;
        traced[V * PLANE + place] = v;
        traced[KEY * PLANE + place] = key_at(place, channel);
        traced[UNIT_KK * PLANE + place] = projected[PLANE + place] * vectors[K_K + channel] * scale;
    }
    if thread == 0u {
        traced[D_BONUS * PLANE + group.y * (WIDTH / HEAD_SIZE) + group.x] = sums.w;
    }
}
