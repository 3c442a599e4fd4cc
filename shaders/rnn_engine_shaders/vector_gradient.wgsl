// Add the gradients of vectors that lie side by side, times a scale, to `gradient`:
//   gradient[START + v * WIDTH + d] += scale * sum over the tokens t of gradients[PLANE + v][t, d].
//
// If MIXES, the vectors mix each token with the one before it, and the gradients are multiplied with the difference.
// A thread owns a number of a vector, and adds up the tokens in their order.
// Workgroups: (ceil(WIDTH / THREADS), vectors).

#include batch
#include train_settings
@group(0) @binding(0) var<storage, read> batch: Batch;
@group(0) @binding(1) var<storage, read> settings: TrainSettings;
@group(0) @binding(2) var<storage, read> gradients: array<f32>;  // [PLANE + vectors or more, MAX_TOKENS, WIDTH]
@group(0) @binding(3) var<storage, read> difference: array<f32>; // [2, MAX_TOKENS, WIDTH], the second one if MIXES
@group(0) @binding(4) var<storage, read_write> gradient: array<f32>;

@compute @workgroup_size(THREADS)
fn main(@builtin(global_invocation_id) thread: vec3<u32>) {
    let d = thread.x;
    if d >= WIDTH {
        return;
    }
    var sum = 0.0;
    for (var t = 0u; t < batch.num_tokens; t++) {
        var own = gradients[((PLANE + thread.y) * MAX_TOKENS + t) * WIDTH + d];
        if MIXES {
            own *= difference[(MAX_TOKENS + t) * WIDTH + d];
        }
        sum += own;
    }
    gradient[START + thread.y * WIDTH + d] += settings.scale * sum;
}
