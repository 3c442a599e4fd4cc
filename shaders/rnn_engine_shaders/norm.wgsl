// Compute the mean and 1 / standard deviation of WIDTH floats of `x`. All THREADS threads of a workgroup take part.
// If not CENTRES, the mean is 0, so that the norm is RMS norm, which has no bias.

#include sum_over_workgroup

const PARTS = (WIDTH + THREADS - 1u) / THREADS; // numbers of a thread
const MOST_HELD = 32u; // that a thread keeps, so that it loads all of them at once, and once only
const FULL = WIDTH % THREADS == 0u; // every thread has PARTS numbers
const HOLDS = PARTS <= MOST_HELD && THREADS > 8u; // software devices have 8 threads and compile long code slowly

fn bias_of_norm(place: u32) -> f32 {
    if CENTRES {
        return vectors[place];
    }
    return 0.0;
}

fn mean_of(sum: f32, thread: u32) -> f32 {
    if CENTRES {
        return sum_over_workgroup(sum, thread) / f32(WIDTH);
    }
    return 0.0;
}

fn mean_and_scale(start: u32, thread: u32) -> vec2<f32> {
    if HOLDS {
        return mean_and_scale_held(start, thread);
    }
    var sum = 0.0;
    for (var d = thread; d < WIDTH; d += THREADS) {
        sum += x[start + d];
    }
    let mean = mean_of(sum, thread);
    var squares = 0.0;
    for (var d = thread; d < WIDTH; d += THREADS) {
        let deviation = x[start + d] - mean;
        squares += deviation * deviation;
    }
    let variance = sum_over_workgroup(squares, thread) / f32(WIDTH);
    return vec2<f32>(mean, inverseSqrt(variance + NORM_EPSILON));
}

fn mean_and_scale_held(start: u32, thread: u32) -> vec2<f32> {
    var own: array<f32, min(PARTS, MOST_HELD)>;
    var sum = 0.0;
    for (var p = 0u; p < min(PARTS, MOST_HELD); p++) {
        let d = thread + p * THREADS;
        own[p] = select(0.0, x[start + min(d, WIDTH - 1u)], FULL || d < WIDTH);
        sum += own[p];
    }
    let mean = mean_of(sum, thread);
    var squares = 0.0;
    for (var p = 0u; p < min(PARTS, MOST_HELD); p++) {
        let deviation = select(0.0, own[p] - mean, FULL || thread + p * THREADS < WIDTH);
        squares += deviation * deviation;
    }
    let variance = sum_over_workgroup(squares, thread) / f32(WIDTH);
    return vec2<f32>(mean, inverseSqrt(variance + NORM_EPSILON));
}
