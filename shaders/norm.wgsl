// Mean and 1 / standard deviation of WIDTH floats of `x`, by all THREADS threads of a workgroup together.

var<workgroup> partial: array<f32, THREADS>;

fn sum_over_workgroup(value: f32, thread: u32) -> f32 {
    workgroupBarrier();
    partial[thread] = value;
    workgroupBarrier();
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        if thread < half {
            partial[thread] += partial[thread + half];
        }
        workgroupBarrier();
    }
    return partial[0];
}

fn mean_and_scale(start: u32, thread: u32) -> vec2<f32> {
    var sum = 0.0;
    for (var d = thread; d < WIDTH; d += THREADS) {
        sum += x[start + d];
    }
    let mean = sum_over_workgroup(sum, thread) / f32(WIDTH);
    var squares = 0.0;
    for (var d = thread; d < WIDTH; d += THREADS) {
        let deviation = x[start + d] - mean;
        squares += deviation * deviation;
    }
    let variance = sum_over_workgroup(squares, thread) / f32(WIDTH);
    return vec2<f32>(mean, inverseSqrt(variance + 1e-5));
}
