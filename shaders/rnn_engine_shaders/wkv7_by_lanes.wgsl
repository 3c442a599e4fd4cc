// The RWKV-7 recurrence of one head of size 64 over one run, as in wkv7.wgsl: see head_by_lanes.wgsl.
// Workgroups: (H, runs); a thread owns four rows of S and walks the run's tokens in order.

#include head_by_lanes
@group(0) @binding(5) var<storage, read> gates: array<vec4<f32>>;         // decay, a, g, v_gate: [4, MAX_TOKENS, WIDTH]
@group(0) @binding(6) var<storage, read_write> v_first: array<vec4<f32>>; // [MAX_TOKENS, WIDTH]

alias Traced = vec4<f32>;
#include traced_planes
#include TRACE

// The vectors that all rows use for a token.
struct Columns {
    decay: Whole,
    rate: Whole,
    key: Whole,
    receptance: Whole,
}

// Take a token into four columns of the rows, and return their products with its receptance.
fn update_columns(quad: u32, columns: Columns, removed: vec4<f32>, v: vec4<f32>) -> vec4<f32> {
    let decay = columns.decay[quad];
    let rate = columns.rate[quad];
    let key = columns.key[quad];
    s[0][quad] = s[0][quad] * decay + removed.x * rate + v.x * key;
    s[1][quad] = s[1][quad] * decay + removed.y * rate + v.y * key;
    s[2][quad] = s[2][quad] * decay + removed.z * rate + v.z * key;
    s[3][quad] = s[3][quad] * decay + removed.w * rate + v.w * key;
    return multiply_columns(quad, columns.receptance[quad]);
}

@compute @workgroup_size(HEAD_THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let run = batch.runs[group.y];
    let share = share_of(group.x, thread);
    var k_k: Own;
    var k_a: Own;
    var r_k: Own;
    for (var q = 0u; q < 2u; q++) {
        k_k[q] = vectors[K_K / 4u + share.loaded + q];
        k_a[q] = vectors[K_A / 4u + share.loaded + q];
        r_k[q] = vectors[R_K / 4u + share.loaded + q];
    }
    load_state(run.slot, share);

    for (var token = run.start; token < run.start + run.length; token++) {
        let place = token * (WIDTH / 4u) + share.loaded;
        let own_place = token * (WIDTH / 4u) + share.owned;
        var receptance: Own;
        var decay: Own;
        var key: Own;
        var kk: Own; // not yet of length 1
        var rate: Own;
        var squares = vec4<f32>();
        var bonuses = vec4<f32>();
        for (var q = 0u; q < 2u; q++) {
            let k = projected[PLANE + place + q];
            let a = gates[PLANE + place + q];
            receptance[q] = projected[place + q];
            decay[q] = gates[place + q];
            key[q] = k * (1.0 + (a - 1.0) * k_a[q]);
            kk[q] = k * k_k[q];
            rate[q] = kk[q] * a;
            squares += kk[q] * kk[q];
            bonuses += receptance[q] * key[q] * r_k[q];
        }
        var v = projected[2u * PLANE + own_place];
        if IS_FIRST_LAYER {
            v_first[own_place] = v;
        } else {
            v += (v_first[own_place] - v) * gates[3u * PLANE + own_place];
        }
        let scale = 1.0 / max(sqrt(sum_of_vector(squares)), 1e-12);
        let bonus = sum_of_vector(bonuses);

        let kk_whole = whole(kk);
        var sa = vec4<f32>();
        sa += multiply_columns(0u, kk_whole[0]);
        sa += multiply_columns(1u, kk_whole[1]);
        sa += multiply_columns(2u, kk_whole[2]);
        sa += multiply_columns(3u, kk_whole[3]);
        sa += multiply_columns(4u, kk_whole[4]);
        sa += multiply_columns(5u, kk_whole[5]);
        sa += multiply_columns(6u, kk_whole[6]);
        sa += multiply_columns(7u, kk_whole[7]);
        sa += multiply_columns(8u, kk_whole[8]);
        sa += multiply_columns(9u, kk_whole[9]);
        sa += multiply_columns(10u, kk_whole[10]);
        sa += multiply_columns(11u, kk_whole[11]);
        sa += multiply_columns(12u, kk_whole[12]);
        sa += multiply_columns(13u, kk_whole[13]);
        sa += multiply_columns(14u, kk_whole[14]);
        sa += multiply_columns(15u, kk_whole[15]);
        sa *= -scale;
        let removed = sa * scale;

        let columns = Columns(whole(decay), whole(rate), whole(key), whole(receptance));
        var y = vec4<f32>();
        y += update_columns(0u, columns, removed, v);
        y += update_columns(1u, columns, removed, v);
        y += update_columns(2u, columns, removed, v);
        y += update_columns(3u, columns, removed, v);
        y += update_columns(4u, columns, removed, v);
        y += update_columns(5u, columns, removed, v);
        y += update_columns(6u, columns, removed, v);
        y += update_columns(7u, columns, removed, v);
        y += update_columns(8u, columns, removed, v);
        y += update_columns(9u, columns, removed, v);
        y += update_columns(10u, columns, removed, v);
        y += update_columns(11u, columns, removed, v);
        y += update_columns(12u, columns, removed, v);
        y += update_columns(13u, columns, removed, v);
        y += update_columns(14u, columns, removed, v);
        y += update_columns(15u, columns, removed, v);

        trace(TRACED_Y, own_place, y);
        trace(TRACED_SA, own_place, sa);
        var out = y;
        if HAS_GROUP_NORM {
            out = normalize_over_head(y, thread, token % 2u) * share.norm_weight + share.norm_bias;
        }
        out += bonus * v;
        if HAS_GATE {
            out *= gates[2u * PLANE + own_place];
        }
        mixed[own_place] = out;
    }
    if KEEPS_STATE {
        keep_state(run.slot, share);
    }
}
