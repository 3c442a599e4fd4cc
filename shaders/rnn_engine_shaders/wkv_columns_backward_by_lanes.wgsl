// The backward pass of the recurrence of one head of size 64 over one run by columns, as in wkv_columns_backward.wgsl.
// Workgroups: (H, runs); a thread owns four columns of dS. See head_by_lanes.wgsl.

#include batch
@group(0) @binding(0) var<storage, read> batch: Batch;
@group(0) @binding(1) var<storage, read> projected: array<vec4<f32>>; // r: [MAX_TOKENS, WIDTH]
@group(0) @binding(2) var<storage, read> gates: array<vec4<f32>>;     // decay, from DECAY_START on: [MAX_TOKENS, WIDTH]
@group(0) @binding(3) var<storage, read> traced: array<vec4<f32>>;    // see traced_planes.wgsl
@group(0) @binding(4) var<storage, read_write> d_projected: array<vec4<f32>>; // [3, MAX_TOKENS, WIDTH]; dk
@group(0) @binding(5) var<storage, read_write> d_gates: array<vec4<f32>>;     // [2, MAX_TOKENS, WIDTH]; RWKV-7's db in the second plane
@group(0) @binding(6) var<storage, read_write> kept: array<vec4<f32>>;        // see kept_gradients.wgsl
@group(0) @binding(7) var<storage, read_write> state_gradients: array<vec4<f32>>; // [slots, STATE_STRIDE / 4]; wkv: [H, 16, 64, 4]

#include columns_by_lanes

var<private> ds: array<array<vec4<f32>, 4>, QUADS>; // [row / 4, row % 4], four columns each

// What a token has at the thread's columns.
struct Columns {
    r: vec4<f32>,
    decay: vec4<f32>,
    kk: vec4<f32>,
}

struct Sums {
    dk: vec4<f32>,
    db: vec4<f32>,
}

fn walk_quad(quad: u32, rows: Rows, columns: Columns, sums: Sums) -> Sums {
    let v = rows.v[quad];
    let dy = rows.dy[quad];
    if !REMOVES_KEYS {
        let dk = sums.dk + ds[quad][0] * v.x + ds[quad][1] * v.y + ds[quad][2] * v.z + ds[quad][3] * v.w;
        ds[quad][0] = ds[quad][0] * columns.decay + columns.r * dy.x;
        ds[quad][1] = ds[quad][1] * columns.decay + columns.r * dy.y;
        ds[quad][2] = ds[quad][2] * columns.decay + columns.r * dy.z;
        ds[quad][3] = ds[quad][3] * columns.decay + columns.r * dy.w;
        return Sums(dk, vec4<f32>());
    }
    let d0 = ds[quad][0] + columns.r * dy.x;
    let d1 = ds[quad][1] + columns.r * dy.y;
    let d2 = ds[quad][2] + columns.r * dy.z;
    let d3 = ds[quad][3] + columns.r * dy.w;
    let d_sa = rows.d_sa[quad];
    ds[quad][0] = d0 * columns.decay - columns.kk * d_sa.x;
    ds[quad][1] = d1 * columns.decay - columns.kk * d_sa.y;
    ds[quad][2] = d2 * columns.decay - columns.kk * d_sa.z;
    ds[quad][3] = d3 * columns.decay - columns.kk * d_sa.w;
    let sa = rows.sa[quad];
    return Sums(
        sums.dk + d0 * v.x + d1 * v.y + d2 * v.z + d3 * v.w,
        sums.db + d0 * sa.x + d1 * sa.y + d2 * sa.z + d3 * sa.w,
    );
}

@compute @workgroup_size(HEAD_THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let run = batch.runs[group.y];
    let loaded = group.x * QUADS + 2u * (thread % LANES); // the first of two fours that this lane loads
    let owned = group.x * QUADS + thread;

    for (var left = run.length; left > 0u; left--) {
        let token = run.start + left - 1u;
        let rows = load_rows(token * (WIDTH / 4u) + loaded);
        let place = token * (WIDTH / 4u) + owned;
        let decay = gates[(DECAY_START + token * DECAY_STRIDE) / 4u + owned];
        var columns = Columns(projected[place], decay, vec4<f32>());
        if REMOVES_KEYS {
            columns.kk = traced[UNIT_KK * PLANE + place];
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
        d_projected[PLANE + place] = sums.dk;
        if REMOVES_KEYS {
            d_gates[PLANE + place] = sums.db;
        }
        if (left - 1u) % KEPT_EVERY == 0u {
            let start = kept_start(group.x, group.y, run.start, left - 1u) + thread;
            for (var q = 0u; q < QUADS; q++) {
                for (var i = 0u; i < 4u; i++) {
                    kept[start + (4u * q + i) * HEAD_THREADS] = ds[q][i];
                }
            }
        }
    }

    let start = (run.slot * STATE_STRIDE + WKV_OFFSET + group.x * HEAD_SIZE * HEAD_SIZE) / 4u + thread * HEAD_SIZE;
    for (var q = 0u; q < QUADS; q++) {
        for (var i = 0u; i < 4u; i++) {
            state_gradients[start + 4u * q + i] = ds[q][i];
        }
    }
}
