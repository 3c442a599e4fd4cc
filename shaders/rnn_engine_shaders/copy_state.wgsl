// Copy one layer's state between slots, or write the initial state to slots: one of `pairs` for each y.

const INITIAL = 0xffffffffu; // instead of a source slot

struct Pair {
    source_slot: u32,
    target_slot: u32,
}

@group(0) @binding(0) var<storage, read> pairs: array<Pair>;
@group(0) @binding(1) var<storage, read> initial: array<vec4<f32>>; // [STATE_STRIDE / 4, 4]
@group(0) @binding(2) var<storage, read_write> state: array<vec4<f32>>; // [slots, STATE_STRIDE / 4, 4]

const VECTORS = STATE_STRIDE / 4u;

@compute @workgroup_size(THREADS)
fn main(@builtin(global_invocation_id) thread: vec3<u32>) {
    let pair = pairs[thread.y];
    if thread.x < VECTORS {
        var values = initial[thread.x];
        if pair.source_slot != INITIAL {
            values = state[pair.source_slot * VECTORS + thread.x];
        }
        state[pair.target_slot * VECTORS + thread.x] = values;
    }
}
