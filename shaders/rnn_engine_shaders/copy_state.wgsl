// Copy one layer's state from slot `pair.source_slot` to slot `pair.target_slot`.

struct Pair {
    source_slot: u32,
    target_slot: u32,
}

@group(0) @binding(0) var<storage, read> pair: Pair;
@group(0) @binding(1) var<storage, read_write> state: array<vec4<f32>>; // [slots, STATE_STRIDE / 4, 4]

const VECTORS = STATE_STRIDE / 4u;

@compute @workgroup_size(THREADS)
fn main(@builtin(global_invocation_id) thread: vec3<u32>) {
    if thread.x < VECTORS {
        state[pair.target_slot * VECTORS + thread.x] = state[pair.source_slot * VECTORS + thread.x];
    }
}
