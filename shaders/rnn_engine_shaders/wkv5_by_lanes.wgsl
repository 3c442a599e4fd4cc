// The recurrence of RWKV-5 and RWKV-6 for one head of size 64 over one run, as in wkv5.wgsl: see head_by_lanes.wgsl.
// Workgroups: (H, runs); a thread owns four rows of S and walks the run's tokens in order.

#include head_by_lanes
@group(0) @binding(5) var<storage, read> decay: array<vec4<f32>>; // [WIDTH] or [T, WIDTH], from DECAY_START on

alias Traced = vec4<f32>;
#include traced_planes
#include TRACE

// The vectors that all rows use for a token.
struct Columns {
    decay: Whole,
    key: Whole,
    receptance: Whole,
}

// Return the products of four columns of the rows with a token's receptance, then take the token into these columns.
fn update_columns(quad: u32, columns: Columns, v: vec4<f32>) -> vec4<f32> {
    let y = multiply_columns(quad, columns.receptance[quad]);
    let rate = columns.decay[quad];
    let key = columns.key[quad];
    s[0][quad] = s[0][quad] * rate + v.x * key;
    s[1][quad] = s[1][quad] * rate + v.y * key;
    s[2][quad] = s[2][quad] * rate + v.z * key;
    s[3][quad] = s[3][quad] * rate + v.w * key;
    return y;
}

@compute @workgroup_size(HEAD_THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let run = batch.runs[group.y];
    let share = share_of(group.x, thread);
    var u = Own(vec4<f32>(1.0), vec4<f32>(1.0));
    if HAS_BONUS {
        u = Own(vectors[U / 4u + share.loaded], vectors[U / 4u + share.loaded + 1u]);
    }
    let kv_back = (group.x - group.x / HEADS_A_KV_HEAD) * QUADS; // from the places of a head to those of its key
    load_state(run.slot, share);

    for (var token = run.start; token < run.start + run.length; token++) {
        let place = token * (WIDTH / 4u) + share.loaded;
        let own_place = token * (WIDTH / 4u) + share.owned;
        let decay_place = (DECAY_START + token * DECAY_STRIDE) / 4u + share.loaded;
        var receptance = Own(projected[place], projected[place + 1u]);
        var key = Own(projected[PLANE + place - kv_back], projected[PLANE + place - kv_back + 1u]);
        let rate = Own(decay[decay_place], decay[decay_place + 1u]);
        let v = projected[2u * PLANE + own_place - kv_back];
        if !HAS_BONUS { // see wkv5.wgsl
            receptance = Own(receptance[0] / sqrt(f32(HEAD_SIZE)), receptance[1] / sqrt(f32(HEAD_SIZE)));
            key = Own(key[0] * (1.0 - rate[0]), key[1] * (1.0 - rate[1]));
        }
        let bonus = sum_of_vector(receptance[0] * u[0] * key[0] + receptance[1] * u[1] * key[1]);
        if !HAS_BONUS {
            receptance = Own(receptance[0] * rate[0], receptance[1] * rate[1]);
        }
        let columns = Columns(whole(rate), whole(key), whole(receptance));
        var y = bonus * v;
        y += update_columns(0u, columns, v);
        y += update_columns(1u, columns, v);
        y += update_columns(2u, columns, v);
        y += update_columns(3u, columns, v);
        y += update_columns(4u, columns, v);
        y += update_columns(5u, columns, v);
        y += update_columns(6u, columns, v);
        y += update_columns(7u, columns, v);
        y += update_columns(8u, columns, v);
        y += update_columns(9u, columns, v);
        y += update_columns(10u, columns, v);
        y += update_columns(11u, columns, v);
        y += update_columns(12u, columns, v);
        y += update_columns(13u, columns, v);
        y += update_columns(14u, columns, v);
        y += update_columns(15u, columns, v);

        trace(TRACED_Y, own_place, y);
        var out = y;
        if HAS_GROUP_NORM {
            out = normalize_over_head(y, thread, token % 2u) * share.norm_weight + share.norm_bias;
        }
        if HAS_GATE {
            let gate = projected[3u * PLANE + own_place];
            out *= select(vec4<f32>(1.0), gate, HAS_BONUS) / (1.0 + exp(-gate));
        }
        mixed[own_place] = out;
    }
    if KEEPS_STATE {
        keep_state(run.slot, share);
    }
}
