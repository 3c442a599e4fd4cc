// Compute a head of size 64 with 16 threads. Workgroup memory holds nothing except the moments of the group norm.
// For devices whose subgroups have at least 8 lanes; the other conditions of broadcast.wgsl hold here too.
// A thread owns four rows of S in registers. Each of eight lanes loads two fours of every vector that all rows use, and
// all lanes get them by broadcast. Indices of registers are literals, since drivers keep an array in memory if they do
// not unroll the loop over it. Bindings from 5 on belong to the kernel that includes this file.

#include batch
@group(0) @binding(0) var<storage, read> batch: Batch;
@group(0) @binding(1) var<storage, read> vectors: array<vec4<f32>>;     // the layer's vectors, packed
@group(0) @binding(2) var<storage, read> projected: array<vec4<f32>>;   // r, k, v, perhaps g: [4, MAX_TOKENS, WIDTH]
@group(0) @binding(3) var<storage, read_write> state: array<vec4<f32>>; // [slots, STATE_STRIDE / 4]; wkv: [H, 16, 64, 4]
@group(0) @binding(4) var<storage, read_write> mixed: array<vec4<f32>>; // [T, WIDTH]

#include vectors_by_lanes

const PLANE = MAX_TOKENS * WIDTH / 4u; // of `projected`, in fours

var<private> s: array<array<vec4<f32>, QUADS>, 4>; // [row, column / 4]
var<workgroup> moments: array<vec2<f32>, 2u * HEAD_THREADS>;

// A thread's share of a head: its places in a vector of WIDTH, in fours, and the group norm of its rows.
struct Share {
    loaded: u32, // the first of two fours that this lane loads
    owned: u32,  // its rows
    state: u32,  // the first column of its rows in a slot's state
    norm_weight: vec4<f32>,
    norm_bias: vec4<f32>,
}

fn share_of(head: u32, thread: u32) -> Share {
    let owned = head * QUADS + thread;
    return Share(
        head * QUADS + 2u * (thread % LANES),
        owned,
        (WKV_OFFSET + head * HEAD_SIZE * HEAD_SIZE) / 4u + 4u * thread,
        vectors[GROUP_NORM_WEIGHT / 4u + owned],
        vectors[GROUP_NORM_BIAS / 4u + owned],
    );
}

fn load_state(slot: u32, share: Share) {
    let start = slot * (STATE_STRIDE / 4u) + share.state;
    for (var q = 0u; q < QUADS; q++) {
        for (var i = 0u; i < 4u; i++) {
            s[i][q] = state[start + q * HEAD_SIZE + i];
        }
    }
}

fn keep_state(slot: u32, share: Share) {
    let start = slot * (STATE_STRIDE / 4u) + share.state;
    for (var q = 0u; q < QUADS; q++) {
        for (var i = 0u; i < 4u; i++) {
            state[start + q * HEAD_SIZE + i] = s[i][q];
        }
    }
}

// Return the sum over the eight lanes that together have loaded a vector.
fn sum_of_vector(own: vec4<f32>) -> f32 {
    return sum_of(broadcast_eight(sum_of_four(own)));
}

// Return, for each of the thread's four rows, the product of four columns with the same columns of a vector.
fn multiply_columns(quad: u32, vector: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(dot(s[0][quad], vector), dot(s[1][quad], vector), dot(s[2][quad], vector), dot(s[3][quad], vector));
}

// Return a thread's four numbers of a vector, normalised to mean 0 and variance 1 over the head. `side` must alternate
// from token to token, so that one barrier per token is enough.
fn normalize_over_head(own: vec4<f32>, thread: u32, side: u32) -> vec4<f32> {
    let own_mean = sum_of_four(own) / 4.0;
    let deviations = own - own_mean;
    moments[side * HEAD_THREADS + thread] = vec2<f32>(own_mean, dot(deviations, deviations));
    workgroupBarrier();
    let lane = thread % LANES;
    let one = moments[side * HEAD_THREADS + lane];
    let other = moments[side * HEAD_THREADS + LANES + lane];
    let mean = sum_of(broadcast_eight(one.x + other.x)) / f32(HEAD_THREADS);
    let between = (one.x - mean) * (one.x - mean) + (other.x - mean) * (other.x - mean);
    let variance = sum_of(broadcast_eight(one.y + other.y + 4.0 * between)) / f32(HEAD_SIZE);
    return (own - mean) * inverseSqrt(variance + EPSILON);
}
