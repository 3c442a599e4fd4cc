// Compute the mean and 1 / standard deviation of WIDTH floats of `x`. All THREADS threads of a workgroup take part.

#include sum_over_workgroup

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
