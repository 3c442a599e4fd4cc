// Compute the inputs from the residual stream: norm and token shift, as norm_shift.wgsl would have stored them.
// Every workgroup does so, which takes less time than one more dispatch. Only for steps of one token: the token before
// it is the slot's shift.

@group(0) @binding(4) var<storage, read> x: array<f32>;           // [1, WIDTH]
@group(0) @binding(7) var<storage, read_write> state: array<f32>; // [slots, STATE_STRIDE]

#include norm
#include mixes_not_kept

var<workgroup> inputs: array<f32, WIDTH>;

// What a thread loads for a column.
struct Loaded {
    x: f32,
    weight: f32,
    bias: f32,
    previous: f32,
    mix: f32,
}

alias OwnColumns = array<Loaded, PARTS>;

fn norm_column(loaded: Loaded, stats: vec2<f32>) -> f32 {
    return (loaded.x - stats.x) * stats.y * loaded.weight + loaded.bias;
}

fn mix_column(normed: f32, previous: f32, mix: f32) -> f32 {
    if SHIFTS {
        return normed + (previous - normed) * mix;
    }
    return normed;
}

// Compute the inputs, and return `place` with their new place. The first workgroup also stores the slot's new shift.
fn prepare_inputs(place: Place, own: Own) -> Place {
    let run = batch.runs[0];
    let shifts = run.slot * STATE_STRIDE + SHIFT_OFFSET; // [2, WIDTH]
    let old_shift = shifts + run.shift_side * WIDTH;
    let new_shift = shifts + (1u - run.shift_side) * WIDTH;
    let mix = MIX + place.segment.inputs_start / (MAX_TOKENS * WIDTH) * WIDTH;
    var loaded: OwnColumns; // all before the first is used
    for (var p = 0u; p < PARTS; p++) {
        let d = min(own.thread + p * THREADS, WIDTH - 1u); // without `min`, compilers would keep the addresses for later
        loaded[p] = Loaded(x[d], vectors[NORM_WEIGHT + d], bias_of_norm(NORM_BIAS + d), state[old_shift + d], vectors[mix + d]);
    }
    let stats = mean_and_scale(0u, own.thread);
    for (var p = 0u; p < PARTS; p++) {
        let d = own.thread + p * THREADS;
        if FULL || d < WIDTH { // without a branch, loads are waited for once
            let normed = norm_column(loaded[p], stats);
            inputs[d] = mix_column(normed, loaded[p].previous, loaded[p].mix);
        }
    }
    if SHIFTS && place.workgroup == 0u && run.length > 0u { // a run of length 0 was ended by a draw
        for (var p = 0u; p < PARTS; p++) {
            let d = own.thread + p * THREADS;
            if d < WIDTH {
                state[new_shift + d] = norm_column(loaded[p], stats);
            }
        }
    }
    keep_mixes(place.workgroup, own.thread, loaded, stats);
    workgroupBarrier();
    var prepared = place;
    prepared.segment.inputs_start = 0u;
    prepared.segment.inputs_stride = 0u;
    return prepared;
}
