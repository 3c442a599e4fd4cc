// Set the states of the first slots to a layer's initial state. Workgroups: (ceil(STATE_STRIDE / THREADS), slots).

@group(0) @binding(0) var<storage, read> initial: array<f32>;      // [STATE_STRIDE]
@group(0) @binding(1) var<storage, read_write> state: array<f32>;  // [slots, STATE_STRIDE]

@compute @workgroup_size(THREADS)
fn main(@builtin(global_invocation_id) thread: vec3<u32>) {
    if thread.x < STATE_STRIDE {
        state[thread.y * STATE_STRIDE + thread.x] = initial[thread.x];
    }
}
