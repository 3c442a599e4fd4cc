// The backward pass of norm_shift.wgsl: add the gradient through mixes, token shift and layer norm to that of x.
// One workgroup per token:
//   dn[t]  = sum over mixes of (1 - mix) * d_mix[t], and of mix * d_mix[t + 1] unless t is the last token of its run
//   dx[t] += dn[t] through the layer norm
// The difference prev - n, if KEEPS_DIFFERENCE, counts as a mix of 1 from which n is subtracted.
// If TRAINS_SHIFT, the gradient of a run's first `prev` becomes that of its slot's shift, side 0.

#include batch
@group(0) @binding(0) var<storage, read> batch: Batch;
@group(0) @binding(1) var<storage, read> x: array<f32>;        // [T, WIDTH], the input of the layer norm
@group(0) @binding(2) var<storage, read> vectors: array<f32>;  // the layer's vectors, packed
@group(0) @binding(3) var<storage, read> d_mixes: array<f32>;  // [MIXES (+ 1 if KEEPS_DIFFERENCE), MAX_TOKENS, WIDTH]
@group(0) @binding(4) var<storage, read_write> dx: array<f32>; // [T, WIDTH]
@group(0) @binding(5) var<storage, read_write> state_gradients: array<f32>; // [slots, STATE_STRIDE]

#include norm

// Return the gradients of a token's own n and of the n before it, through the token's mixes.
fn through_mixes(token: u32, d: u32) -> vec2<f32> {
    var gradients = vec2<f32>();
    for (var m = 0u; m < MIXES; m++) {
        let mix = vectors[MIX + m * WIDTH + d];
        gradients += d_mixes[(m * MAX_TOKENS + token) * WIDTH + d] * vec2<f32>(1.0 - mix, mix);
    }
    if KEEPS_DIFFERENCE {
        gradients += d_mixes[(MIXES * MAX_TOKENS + token) * WIDTH + d] * vec2<f32>(-1.0, 1.0);
    }
    return gradients;
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let token = group.x;
    let run = batch.runs[batch.tokens[token].run];
    let is_last = token + 1u == run.start + run.length;
    let here = token * WIDTH;
    let stats = mean_and_scale(here, thread);
    var sum = 0.0;
    var product = 0.0;
    for (var d = thread; d < WIDTH; d += THREADS) {
        let own = through_mixes(token, d);
        var gradient = own.x;
        if !is_last {
            gradient += through_mixes(token + 1u, d).y;
        }
        if TRAINS_SHIFT && token == run.start {
            state_gradients[run.slot * STATE_STRIDE + SHIFT_OFFSET + d] = own.y;
        }
        gradient *= vectors[NORM_WEIGHT + d];
        sum += gradient;
        product += gradient * (x[here + d] - stats.x) * stats.y;
        dx[here + d] += gradient * stats.y;
    }
    let mean = sum_over_workgroup(sum, thread) / f32(WIDTH);
    let slope = sum_over_workgroup(product, thread) / f32(WIDTH);
    for (var d = thread; d < WIDTH; d += THREADS) {
        dx[here + d] -= (mean + (x[here + d] - stats.x) * stats.y * slope) * stats.y;
    }
}
