// The recurrence of RWKV-5 and RWKV-6 for one head over one run, with the bonus, group norm and gate of the head.
// Workgroups: (H, runs); SHARES threads own row i of S [value, key] in registers and walk the run's tokens in order.
//   y    = S r + (sum of r * u * k) v          (S from before the token)
//   S    = S * decay + v k^T
//   out  = group_norm(y) * g * sigmoid(g)
// Without HAS_BONUS, it is the gated linear attention of QRWKV6, whose neighbouring heads share keys and values:
//   k    = k * (1 - decay);     S = S * decay + v k^T;     y = S r / sqrt(N)          (S with the token)
//   out  = y * sigmoid(g)

#include batch
@group(0) @binding(0) var<storage, read> batch: Batch;
@group(0) @binding(1) var<storage, read> vectors: array<f32>;           // the layer's vectors, packed
@group(0) @binding(3) var<storage, read> projected: array<f32>;         // r, k, v and, if HAS_GATE, g: [4, MAX_TOKENS, WIDTH], perhaps an inner vector
@group(0) @binding(4) var<storage, read_write> state: array<vec4<f32>>; // [slots, STATE_STRIDE / 4]; wkv: [H, HEAD_THREADS / 4, N, 4]
@group(0) @binding(5) var<storage, read_write> mixed: array<f32>;       // [T, WIDTH]

const PLANE = MAX_TOKENS * WIDTH;

const R = 0u;
const DECAY = 1u;
const K = 2u;
const BONUS = 3u; // r * u * k
const Y = 4u;
const HEAD_VECTORS = 5u;

#include head
#include shares
#include decays

alias Traced = f32;
#include traced_planes
#include TRACE

// What a thread loads of a token: the numbers of its row.
struct Loaded {
    r: f32,
    k: f32,
    v: f32,
    decay: f32,
    g: f32,
}

fn load_token(token: u32, channel: u32, own: Own) -> Loaded {
    let place = token * WIDTH + channel;
    let head = channel / HEAD_SIZE;
    let kv_place = place - (head - head / HEADS_A_KV_HEAD) * HEAD_SIZE;
    var loaded: Loaded;
    loaded.r = projected[place];
    loaded.k = projected[PLANE + kv_place];
    loaded.v = projected[2u * PLANE + kv_place];
    loaded.decay = load_decay(token, channel, own);
    if !HAS_BONUS {
        loaded.r /= sqrt(f32(HEAD_SIZE));
        loaded.k *= 1.0 - loaded.decay;
    }
    if HAS_GATE {
        loaded.g = projected[3u * PLANE + place];
    }
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
    let u = select(1.0, vectors[U + channel], HAS_BONUS);
    let norm_weight = vectors[GROUP_NORM_WEIGHT + channel];
    let norm_bias = vectors[GROUP_NORM_BIAS + channel];
    let state_start = (run.slot * STATE_STRIDE + WKV_OFFSET + group.x * HEAD_THREADS * HEAD_SIZE) / 4u
        + 2u * own.first_eighth * HEAD_SIZE + real_row;

    var s: array<Eight, OWN_EIGHTHS>; // see wkv7.wgsl
    for (var j = 0u; j < OWN_EIGHTHS; j++) {
        s[j] = Eight(state[state_start + 2u * j * HEAD_SIZE], state[state_start + (2u * j + 1u) * HEAD_SIZE]);
    }

    var next = load_token(run.start, channel, own);
    for (var token = run.start; token < run.start + run.length; token++) {
        let place = token * WIDTH + channel;
        let loaded = next;
        let v = loaded.v;
        if LOADS_AHEAD { // while this one is computed
            next = load_token(min(token + 1u, run.start + run.length - 1u), channel, own);
        }
        if is_first(own) {
            set_vector(R, row, select(loaded.r * loaded.decay, loaded.r, HAS_BONUS)); // of S with the token; see `bonus`
            set_vector(DECAY, row, loaded.decay);
            set_vector(K, row, loaded.k);
            set_vector(BONUS, row, loaded.r * u * loaded.k);
        }
        workgroupBarrier();

        var y = 0.0;
        var bonus = 0.0;
        for (var j = 0u; j < OWN_EIGHTHS; j++) {
            let receptance = load_eight(R, own.first_eighth + j, row);
            let rate = load_eight(DECAY, own.first_eighth + j, row);
            let key = load_eight(K, own.first_eighth + j, row);
            bonus += sum_of(load_eight(BONUS, own.first_eighth + j, row));
            y += dot(s[j].low, receptance.low) + dot(s[j].high, receptance.high);
            s[j] = Eight(s[j].low * rate.low + v * key.low, s[j].high * rate.high + v * key.high);
        }
        y = add_up_one(own, y + bonus * v);
        if is_first(own) {
            set_vector(Y, row, y);
        }
        workgroupBarrier();

        if is_first(own) {
            var out = y;
            if HAS_GROUP_NORM {
                out = normalize_over_head(Y, row, EPSILON) * norm_weight + norm_bias;
            }
            if HAS_GATE {
                out *= select(1.0, loaded.g, HAS_BONUS) / (1.0 + exp(-loaded.g));
            }
            if is_real {
                trace(TRACED_Y, place, y);
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
