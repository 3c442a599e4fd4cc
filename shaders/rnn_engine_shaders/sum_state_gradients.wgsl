// Add the gradients of all runs' states, times a scale, to the gradient of a layer's initial state:
//   gradient[i] += scale * sum of state_gradients[run][i],   for the numbers that are trained
// The slot of each run is its number. Workgroups: (ceil(STATE_STRIDE / THREADS)).

#include batch
#include train_settings
@group(0) @binding(0) var<storage, read> batch: Batch;
@group(0) @binding(1) var<storage, read> settings: TrainSettings;
@group(0) @binding(2) var<storage, read> is_trained: array<f32>;       // [STATE_STRIDE] 1 or 0
@group(0) @binding(3) var<storage, read> state_gradients: array<f32>;  // [slots, STATE_STRIDE]
@group(0) @binding(4) var<storage, read_write> gradient: array<f32>;   // [STATE_STRIDE]

@compute @workgroup_size(THREADS)
fn main(@builtin(global_invocation_id) thread: vec3<u32>) {
    let i = thread.x;
    if i < STATE_STRIDE && is_trained[i] != 0.0 {
        var sum = 0.0;
        for (var run = 0u; run < batch.num_runs; run++) {
            sum += state_gradients[run * STATE_STRIDE + i];
        }
        gradient[i] += settings.scale * sum;
    }
}
