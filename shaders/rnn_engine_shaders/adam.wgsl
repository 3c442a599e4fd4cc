// Change numbers that are trained by a step of Adam (Kingma and Ba, 2015) without weight decay, and clear their gradient.
// If the squared norm of all gradients is not finite, the gradient is only cleared.
// Other numbers that lie among them have gradients of 0 and do not change. Workgroups: (ceil(COUNT / THREADS)).

#include train_settings
@group(0) @binding(0) var<storage, read> settings: TrainSettings;
@group(0) @binding(1) var<storage, read> squared_norm: array<f32>;    // [1]
@group(0) @binding(2) var<storage, read_write> values: array<f32>;   // [COUNT]
@group(0) @binding(3) var<storage, read_write> gradient: array<f32>;  // [COUNT]
@group(0) @binding(4) var<storage, read_write> first: array<f32>;     // [COUNT] the running mean of gradients
@group(0) @binding(5) var<storage, read_write> second: array<f32>;    // [COUNT] the same of their squares

@compute @workgroup_size(THREADS)
fn main(@builtin(global_invocation_id) thread: vec3<u32>) {
    let i = thread.x;
    if i >= COUNT {
        return;
    }
    let is_finite = (bitcast<u32>(squared_norm[0]) & 0x7f800000u) != 0x7f800000u; // drivers differ in comparing NaN
    if is_finite {
        let norm = sqrt(squared_norm[0]);
        let own = gradient[i] * select(1.0, settings.max_norm / norm, norm > settings.max_norm);
        let mean = first[i] + settings.first_factor * (own - first[i]);
        let square = second[i] + settings.second_factor * (own * own - second[i]);
        first[i] = mean;
        second[i] = square;
        let root = sqrt(square / settings.second_bias) + settings.epsilon;
        values[i] -= RATE_FACTOR * settings.rate * (mean / settings.first_bias) / root;
    }
    gradient[i] = 0.0;
}
