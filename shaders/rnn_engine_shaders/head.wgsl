// The vectors of one head that the threads of a workgroup share: HEAD_VECTORS of them, for the current token.
// A head has HEAD_SIZE threads, rounded up to a multiple of 8. The surplus threads hold zeros and must not write
// outside this memory.

#include eight

const EIGHTHS = (HEAD_SIZE + 7u) / 8u;
const HEAD_THREADS = 8u * EIGHTHS;

// An array of scalars, since writing one part of a vec4 may also write the other three.
var<workgroup> head: array<f32, HEAD_VECTORS * HEAD_THREADS>;

#include VECTORS

fn set_vector(vector: u32, row: u32, value: f32) {
    head[vector * HEAD_THREADS + row] = select(0.0, value, row < HEAD_SIZE);
}

// Return the number at `row` of a vector, normalised to mean 0 and variance 1 over the head.
fn normalize_over_head(vector: u32, row: u32, epsilon: f32) -> f32 {
    var sum = 0.0;
    for (var j = 0u; j < EIGHTHS; j++) {
        sum += sum_of(load_eight(vector, j, row));
    }
    let mean = sum / f32(HEAD_SIZE);
    var squares = 0.0;
    for (var j = 0u; j < EIGHTHS; j++) {
        let part = load_eight(vector, j, row);
        squares += dot(part.low - mean, part.low - mean) + dot(part.high - mean, part.high - mean);
    }
    if HEAD_THREADS != HEAD_SIZE {
        squares -= f32(HEAD_THREADS - HEAD_SIZE) * mean * mean; // the squares of the surplus zeros
    }
    return (head[vector * HEAD_THREADS + row] - mean) * inverseSqrt(squares / f32(HEAD_SIZE) + epsilon);
}
