// Add the squares of a gradient to the squared norm of all gradients. One workgroup.

@group(0) @binding(0) var<storage, read> gradient: array<f32>;           // [COUNT]
@group(0) @binding(1) var<storage, read_write> squared_norm: array<f32>; // [1]

#include sum_over_workgroup

@compute @workgroup_size(THREADS)
fn main(@builtin(local_invocation_index) thread: u32) {
    var own = 0.0;
    for (var i = thread; i < COUNT; i += THREADS) {
        own += gradient[i] * gradient[i];
    }
    let sum = sum_over_workgroup(own, thread);
    if thread == 0u {
        squared_norm[0] += sum;
    }
}
