// A norm, then the token shift into one or more mixes. One workgroup per token:
//   n           = norm(x[t]);     prev = norm(x[t - 1]), or the slot's shift at a run's start
//   mixes[m][t] = n + (prev - n) * mix[m];     if KEEPS_DIFFERENCE, one more plane holds prev - n
// If not SHIFTS, there is one mix, which is n.
// The last n of every run becomes the slot's shift. The state holds two copies of a shift, one to read and one to
// write, since the workgroups of a run's first and last token run in no fixed order.

#include batch
@group(0) @binding(0) var<storage, read> batch: Batch;
@group(0) @binding(1) var<storage, read> x: array<f32>;            // [T, WIDTH]
@group(0) @binding(2) var<storage, read> vectors: array<f32>;      // the layer's vectors, packed
@group(0) @binding(3) var<storage, read_write> state: array<f32>;  // [slots, STATE_STRIDE]
@group(0) @binding(4) var<storage, read_write> mixes: array<f32>;  // [MIXES (+ 1 if KEEPS_DIFFERENCE), MAX_TOKENS, WIDTH]

#include norm

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let token = group.x;
    let run = batch.runs[batch.tokens[token].run];
    let is_first = token == run.start;
    let is_last = token + 1u == run.start + run.length;
    let here = token * WIDTH;
    let before = select(here - WIDTH, here, is_first);
    let shifts = run.slot * STATE_STRIDE + SHIFT_OFFSET; // [2, WIDTH]
    let old_shift = shifts + run.shift_side * WIDTH;
    let new_shift = shifts + (1u - run.shift_side) * WIDTH;

    let stats_here = mean_and_scale(here, thread);
    var stats_before = stats_here;
    if SHIFTS {
        stats_before = mean_and_scale(before, thread);
    }
    for (var d = thread; d < WIDTH; d += THREADS) {
        let weight = vectors[NORM_WEIGHT + d];
        let bias = bias_of_norm(NORM_BIAS + d);
        let normed = (x[here + d] - stats_here.x) * stats_here.y * weight + bias;
        if !SHIFTS {
            mixes[token * WIDTH + d] = normed;
            continue;
        }
        let previous = select((x[before + d] - stats_before.x) * stats_before.y * weight + bias, state[old_shift + d], is_first);
        for (var m = 0u; m < MIXES; m++) {
            mixes[(m * MAX_TOKENS + token) * WIDTH + d] = normed + (previous - normed) * vectors[MIX + m * WIDTH + d];
        }
        if KEEPS_DIFFERENCE {
            mixes[(MIXES * MAX_TOKENS + token) * WIDTH + d] = previous - normed;
        }
        if is_last {
            state[new_shift + d] = normed;
        }
    }
}
