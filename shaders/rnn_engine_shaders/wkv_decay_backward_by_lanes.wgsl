// The recurrence of one head of size 64 over one run once more, as in wkv_decay_backward.wgsl.
// Workgroups: (H, runs); a thread owns four columns of S. See head_by_lanes.wgsl.

#include batch
@group(0) @binding(0) var<storage, read> batch: Batch;
@group(0) @binding(1) var<storage, read> projected: array<vec4<f32>>; // r: [MAX_TOKENS, WIDTH]
@group(0) @binding(2) var<storage, read> gates: array<vec4<f32>>;     // decay from DECAY_START on, RWKV-7's rate: [2, MAX_TOKENS, WIDTH]
@group(0) @binding(3) var<storage, read> state: array<vec4<f32>>;     // [slots, STATE_STRIDE / 4]; wkv: [H, 16, 64, 4]
@group(0) @binding(4) var<storage, read_write> traced: array<vec4<f32>>;      // see traced_planes.wgsl
@group(0) @binding(5) var<storage, read_write> d_projected: array<vec4<f32>>; // [3, MAX_TOKENS, WIDTH]; dr, and dk to read
@group(0) @binding(6) var<storage, read_write> d_gates: array<vec4<f32>>;     // [2, MAX_TOKENS, WIDTH]; decay * d_decay, and db to read
@group(0) @binding(7) var<storage, read> kept: array<vec4<f32>>;              // see kept_gradients.wgsl

#include columns_by_lanes

var<private> s: array<array<vec4<f32>, 4>, QUADS>; // [row / 4, row % 4], four columns each

// What a token has at the thread's columns.
struct Columns {
    decay: vec4<f32>,
    rate: vec4<f32>,
    key: vec4<f32>,
}

struct Sums {
    da: vec4<f32>,
    dr: vec4<f32>,
}

fn walk_quad(quad: u32, rows: Rows, columns: Columns, sums: Sums) -> Sums {
    let v = rows.v[quad];
    let dy = rows.dy[quad];
    if !REMOVES_KEYS {
        let dr = sums.dr + s[quad][0] * dy.x + s[quad][1] * dy.y + s[quad][2] * dy.z + s[quad][3] * dy.w;
        s[quad][0] = s[quad][0] * columns.decay + columns.key * v.x;
        s[quad][1] = s[quad][1] * columns.decay + columns.key * v.y;
        s[quad][2] = s[quad][2] * columns.decay + columns.key * v.z;
        s[quad][3] = s[quad][3] * columns.decay + columns.key * v.w;
        return Sums(vec4<f32>(), dr);
    }
    let d_sa = rows.d_sa[quad];
    let da = sums.da + s[quad][0] * d_sa.x + s[quad][1] * d_sa.y + s[quad][2] * d_sa.z + s[quad][3] * d_sa.w;
    let sa = rows.sa[quad];
    s[quad][0] = s[quad][0] * columns.decay + columns.rate * sa.x + columns.key * v.x;
    s[quad][1] = s[quad][1] * columns.decay + columns.rate * sa.y + columns.key * v.y;
    s[quad][2] = s[quad][2] * columns.decay + columns.rate * sa.z + columns.key * v.z;
    s[quad][3] = s[quad][3] * columns.decay + columns.rate * sa.w + columns.key * v.w;
    return Sums(da, sums.dr + s[quad][0] * dy.x + s[quad][1] * dy.y + s[quad][2] * dy.z + s[quad][3] * dy.w);
}

// Return the products of four rows with the kept gradients of these, summed over the rows.
fn multiply_kept(quad: u32, start: u32) -> vec4<f32> {
    let first = start + 4u * quad * HEAD_THREADS;
    return s[quad][0] * kept[first] + s[quad][1] * kept[first + HEAD_THREADS]
        + s[quad][2] * kept[first + 2u * HEAD_THREADS] + s[quad][3] * kept[first + 3u * HEAD_THREADS];
}

@compute @workgroup_size(HEAD_THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let run = batch.runs[group.y];
    let loaded = group.x * QUADS + 2u * (thread % LANES); // the first of two fours that this lane loads
    let owned = group.x * QUADS + thread;
    let start = (run.slot * STATE_STRIDE + WKV_OFFSET + group.x * HEAD_SIZE * HEAD_SIZE) / 4u + thread * HEAD_SIZE;
    for (var q = 0u; q < QUADS; q++) {
        for (var i = 0u; i < 4u; i++) {
            s[q][i] = state[start + 4u * q + i];
        }
    }
    var e = vec4<f32>();

    for (var offset = 0u; offset < run.length; offset++) {
        let token = run.start + offset;
        if offset % KEPT_EVERY == 0u {
            let first = kept_start(group.x, group.y, run.start, offset) + thread;
            e = vec4<f32>();
            e += multiply_kept(0u, first);
            e += multiply_kept(1u, first);
            e += multiply_kept(2u, first);
            e += multiply_kept(3u, first);
            e += multiply_kept(4u, first);
            e += multiply_kept(5u, first);
            e += multiply_kept(6u, first);
            e += multiply_kept(7u, first);
            e += multiply_kept(8u, first);
            e += multiply_kept(9u, first);
            e += multiply_kept(10u, first);
            e += multiply_kept(11u, first);
            e += multiply_kept(12u, first);
            e += multiply_kept(13u, first);
            e += multiply_kept(14u, first);
            e += multiply_kept(15u, first);
        }
        let rows = load_rows(token * (WIDTH / 4u) + loaded);
        let place = token * (WIDTH / 4u) + owned;
        let r = projected[place];
        let decay = gates[(DECAY_START + token * DECAY_STRIDE) / 4u + owned];
        var columns = Columns(decay, vec4<f32>(), traced[KEY * PLANE + place]);
        var kk: vec4<f32>;
        if REMOVES_KEYS {
            kk = traced[UNIT_KK * PLANE + place];
            columns.rate = kk * gates[PLANE + place];
        }
        var sums = Sums();
        sums = walk_quad(0u, rows, columns, sums);
        sums = walk_quad(1u, rows, columns, sums);
        sums = walk_quad(2u, rows, columns, sums);
        sums = walk_quad(3u, rows, columns, sums);
        sums = walk_quad(4u, rows, columns, sums);
        sums = walk_quad(5u, rows, columns, sums);
        sums = walk_quad(6u, rows, columns, sums);
        sums = walk_quad(7u, rows, columns, sums);
        sums = walk_quad(8u, rows, columns, sums);
        sums = walk_quad(9u, rows, columns, sums);
        sums = walk_quad(10u, rows, columns, sums);
        sums = walk_quad(11u, rows, columns, sums);
        sums = walk_quad(12u, rows, columns, sums);
        sums = walk_quad(13u, rows, columns, sums);
        sums = walk_quad(14u, rows, columns, sums);
        sums = walk_quad(15u, rows, columns, sums);
        let through_key = columns.key * d_projected[PLANE + place];
        var d_decay: vec4<f32>; // times the decay
        if REMOVES_KEYS {
            d_decay = e + kk * sums.da;
            e = d_decay + columns.rate * d_gates[PLANE + place] + through_key - r * sums.dr;
            traced[D_REMOVED * PLANE + place] = sums.da;
        } else {
            d_decay = e - r * sums.dr;
            e = d_decay + through_key;
        }
        d_projected[place] = sums.dr;
        d_gates[place] = d_decay;
    }
}
