// The RWKV-7 recurrence of one head over one run, with the head's value residual, keys, group norm, bonus and gate.
// Workgroups: (H, runs); SHARES threads own row i of S [value, key] in registers and walk the run's tokens in order.
//   v    = v + (v_first - v) * v_gate          (layer 0 keeps v_first instead)
//   kk   = k * k_k, divided by its length;     k = k * (1 + (a - 1) * k_a)
//   S    = S * decay + (S (-kk)) (kk * a)^T + v k^T;     y = S r
//   out  = (group_norm(y) + sum(r * k * r_k) * v) * g          (HAS_GROUP_NORM, HAS_GATE)

#include batch
@group(0) @binding(0) var<storage, read> batch: Batch;
@group(0) @binding(1) var<storage, read> vectors: array<f32>;          // the layer's vectors, packed
@group(0) @binding(3) var<storage, read> projected: array<f32>;        // r, k, v: [3, MAX_TOKENS, WIDTH], adapters' inner vectors
@group(0) @binding(4) var<storage, read_write> v_first: array<f32>;    // [MAX_TOKENS, WIDTH]
@group(0) @binding(5) var<storage, read_write> state: array<vec4<f32>>; // [slots, STATE_STRIDE / 4]; wkv: [H, HEAD_THREADS / 4, N, 4]
@group(0) @binding(6) var<storage, read_write> mixed: array<f32>;      // [T, WIDTH]

const PLANE = MAX_TOKENS * WIDTH;

const R = 0u;
const DECAY = 1u;
const RATED_K = 2u; // k after the in-context rate
const KK = 3u;      // not yet of length 1
const RATED_KK = 4u; // kk * a
const BONUS = 5u;   // r * k * r_k
const Y = 6u;
const HEAD_VECTORS = 7u;

#include head
#include shares
#include gates

alias Traced = f32;
#include traced_planes
#include TRACE

// What a thread loads of a token: the numbers of its row.
struct Loaded {
    r: f32,
    k: f32,
    v: f32,
    v_first: f32,
    gates: Gates,
}

fn load_token(place: u32, own: Own) -> Loaded {
    var loaded: Loaded;
    loaded.r = projected[place];
    loaded.k = projected[PLANE + place];
    loaded.v = projected[2u * PLANE + place];
    if !IS_FIRST_LAYER {
        loaded.v_first = v_first[place];
    }
    loaded.gates = load_gates(place, own);
    return loaded;
}

@compute @workgroup_size(HEAD_THREADS * SHARES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let own = own_of(thread);
    let row = own.row;
    let run = batch.runs[group.y];
    let is_real = row < HEAD_SIZE;
    let real_row = min(row, HEAD_SIZE - 1u);
    let channel = group.x * HEAD_SIZE + real_row;
    let k_k = vectors[K_K + channel];
    let k_a = vectors[K_A + channel];
    let r_k = vectors[R_K + channel];
    let norm_weight = vectors[GROUP_NORM_WEIGHT + channel];
    let norm_bias = vectors[GROUP_NORM_BIAS + channel];
    let state_start = (run.slot * STATE_STRIDE + WKV_OFFSET + group.x * HEAD_THREADS * HEAD_SIZE) / 4u
        + 2u * own.first_eighth * HEAD_SIZE + real_row;

    // Each loop over `s` has as many turns as `s` has parts. So compilers know that the loop must be unrolled. Otherwise
    // they keep it, and `s` is in registers that are chosen by compares and selects in each turn.
    var s: array<Eight, OWN_EIGHTHS>;
    for (var j = 0u; j < OWN_EIGHTHS; j++) {
        s[j] = Eight(state[state_start + 2u * j * HEAD_SIZE], state[state_start + (2u * j + 1u) * HEAD_SIZE]);
    }

    var next = load_token(run.start * WIDTH + channel, own);
    for (var token = run.start; token < run.start + run.length; token++) {
        let place = token * WIDTH + channel;
        let loaded = next;
        if LOADS_AHEAD { // while this one is computed
            next = load_token(min(token + 1u, run.start + run.length - 1u) * WIDTH + channel, own);
        }
        let rated_k = loaded.k * (1.0 + (loaded.gates.a - 1.0) * k_a);
        var v = loaded.v;
        if IS_FIRST_LAYER {
            if is_real && is_first(own) {
                v_first[place] = v;
            }
        } else {
            v += (loaded.v_first - v) * loaded.gates.v;
        }
        if is_first(own) {
            set_vector(R, row, loaded.r);
            set_vector(DECAY, row, loaded.gates.decay);
            set_vector(RATED_K, row, rated_k);
            set_vector(KK, row, loaded.k * k_k);
            set_vector(RATED_KK, row, loaded.k * k_k * loaded.gates.a);
            set_vector(BONUS, row, loaded.r * rated_k * r_k);
        }
        workgroupBarrier();

        var parts = vec4<f32>(); // of the squares of kk, S kk and the bonus
        for (var j = 0u; j < OWN_EIGHTHS; j++) {
            let kk = load_eight(KK, own.first_eighth + j, row);
            parts.x += dot(kk.low, kk.low) + dot(kk.high, kk.high);
            parts.y += dot(s[j].low, kk.low) + dot(s[j].high, kk.high);
            parts.z += sum_of(load_eight(BONUS, own.first_eighth + j, row));
        }
        let sums = add_up(own, parts);
        let scale = 1.0 / max(sqrt(sums.x), 1e-12);
        let sa = -sums.y * scale;
        let removed = sa * scale;
        var y = 0.0;
        for (var j = 0u; j < OWN_EIGHTHS; j++) {
            let decay = load_eight(DECAY, own.first_eighth + j, row);
            let rate = load_eight(RATED_KK, own.first_eighth + j, row);
            let key = load_eight(RATED_K, own.first_eighth + j, row);
            let receptance = load_eight(R, own.first_eighth + j, row);
            let low = s[j].low * decay.low + removed * rate.low + v * key.low;
            let high = s[j].high * decay.high + removed * rate.high + v * key.high;
            s[j] = Eight(low, high);
            y += dot(low, receptance.low) + dot(high, receptance.high);
        }
        y = add_up_one(own, y);
        if is_first(own) {
            set_vector(Y, row, y);
        }
        workgroupBarrier();

        if is_first(own) {
            var out = y;
            if HAS_GROUP_NORM {
                out = normalize_over_head(Y, row, EPSILON) * norm_weight + norm_bias;
            }
            out += sums.z * v;
            if HAS_GATE {
                out *= loaded.gates.g;
            }
            if is_real {
                trace(TRACED_Y, place, y);
                trace(TRACED_SA, place, sa);
                mixed[place] = out;
            }
        }
    }

    if KEEPS_STATE && is_real {
        for (var j = 0u; j < OWN_EIGHTHS; j++) {
            state[state_start + 2u * j * HEAD_SIZE] = s[j].low;
            state[state_start + (2u * j + 1u) * HEAD_SIZE] = s[j].high;
        }
    }
}
