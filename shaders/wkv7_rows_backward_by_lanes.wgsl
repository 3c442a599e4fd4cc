// The backward pass of the RWKV-7 recurrence of one head of size 64 over one run by rows, as in wkv7_rows_backward.wgsl.
// Workgroups: (H, runs); a thread owns four rows of dS. See head_by_lanes.wgsl.

#include batch
@group(0) @binding(0) var<storage, read> batch: Batch;
@group(0) @binding(1) var<storage, read> projected: array<vec4<f32>>; // r: [MAX_TOKENS, WIDTH]
@group(0) @binding(2) var<storage, read> gates: array<vec4<f32>>;     // decay, a: [2, MAX_TOKENS, WIDTH]
@group(0) @binding(3) var<storage, read_write> traced: array<vec4<f32>>;      // see traced_planes.wgsl
@group(0) @binding(4) var<storage, read_write> d_projected: array<vec4<f32>>; // [3, MAX_TOKENS, WIDTH]; adds to dv

#include traced_planes
#include vectors_by_lanes

const PLANE = MAX_TOKENS * WIDTH / 4u; // in fours

var<private> ds: array<array<vec4<f32>, QUADS>, 4>; // [row, column / 4]

// Return, for each of the thread's four rows, the product of four columns with the same columns of a vector.
fn multiply_columns(quad: u32, vector: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(dot(ds[0][quad], vector), dot(ds[1][quad], vector), dot(ds[2][quad], vector), dot(ds[3][quad], vector));
}

// The vectors of columns with which the threads take a token into dS.
struct Columns {
    receptance: Whole,
    key: Whole,
    rate: Whole,
}

// The products of four columns of the thread's rows.
struct Products {
    dv: vec4<f32>,
    d_sa: vec4<f32>,
}

fn take_output(quad: u32, columns: Columns, dy: vec4<f32>, sums: Products) -> Products {
    let receptance = columns.receptance[quad];
    ds[0][quad] += dy.x * receptance;
    ds[1][quad] += dy.y * receptance;
    ds[2][quad] += dy.z * receptance;
    ds[3][quad] += dy.w * receptance;
    return Products(
        sums.dv + multiply_columns(quad, columns.key[quad]),
        sums.d_sa + multiply_columns(quad, columns.rate[quad]),
    );
}

fn leave_token(quad: u32, decay: vec4<f32>, kk: vec4<f32>, d_sa: vec4<f32>) {
    ds[0][quad] = ds[0][quad] * decay - d_sa.x * kk;
    ds[1][quad] = ds[1][quad] * decay - d_sa.y * kk;
    ds[2][quad] = ds[2][quad] * decay - d_sa.z * kk;
    ds[3][quad] = ds[3][quad] * decay - d_sa.w * kk;
}

@compute @workgroup_size(HEAD_THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let run = batch.runs[group.y];
    let loaded = group.x * QUADS + 2u * (thread % LANES); // the first of two fours that this lane loads
    let owned = group.x * QUADS + thread;

    for (var left = run.length; left > 0u; left--) {
        let token = (run.start + left - 1u) * (WIDTH / 4u);
        let place = token + loaded;
        let own_place = token + owned;
        var receptance: Own;
        var decay: Own;
        var key: Own;
        var kk: Own;
        var rate: Own;
        for (var q = 0u; q < 2u; q++) {
            receptance[q] = projected[place + q];
            decay[q] = gates[place + q];
            key[q] = traced[KEY * PLANE + place + q];
            kk[q] = traced[UNIT_KK * PLANE + place + q];
            rate[q] = kk[q] * gates[PLANE + place + q];
        }
        let dy = traced[D_Y * PLANE + own_place];
        let columns = Columns(whole(receptance), whole(key), whole(rate));
        var sums = Products();
        sums = take_output(0u, columns, dy, sums);
        sums = take_output(1u, columns, dy, sums);
        sums = take_output(2u, columns, dy, sums);
        sums = take_output(3u, columns, dy, sums);
        sums = take_output(4u, columns, dy, sums);
        sums = take_output(5u, columns, dy, sums);
        sums = take_output(6u, columns, dy, sums);
        sums = take_output(7u, columns, dy, sums);
        sums = take_output(8u, columns, dy, sums);
        sums = take_output(9u, columns, dy, sums);
        sums = take_output(10u, columns, dy, sums);
        sums = take_output(11u, columns, dy, sums);
        sums = take_output(12u, columns, dy, sums);
        sums = take_output(13u, columns, dy, sums);
        sums = take_output(14u, columns, dy, sums);
        sums = take_output(15u, columns, dy, sums);
        let all_decay = whole(decay);
        let all_kk = whole(kk);
        leave_token(0u, all_decay[0], all_kk[0], sums.d_sa);
        leave_token(1u, all_decay[1], all_kk[1], sums.d_sa);
        leave_token(2u, all_decay[2], all_kk[2], sums.d_sa);
        leave_token(3u, all_decay[3], all_kk[3], sums.d_sa);
        leave_token(4u, all_decay[4], all_kk[4], sums.d_sa);
        leave_token(5u, all_decay[5], all_kk[5], sums.d_sa);
        leave_token(6u, all_decay[6], all_kk[6], sums.d_sa);
        leave_token(7u, all_decay[7], all_kk[7], sums.d_sa);
        leave_token(8u, all_decay[8], all_kk[8], sums.d_sa);
        leave_token(9u, all_decay[9], all_kk[9], sums.d_sa);
        leave_token(10u, all_decay[10], all_kk[10], sums.d_sa);
        leave_token(11u, all_decay[11], all_kk[11], sums.d_sa);
        leave_token(12u, all_decay[12], all_kk[12], sums.d_sa);
        leave_token(13u, all_decay[13], all_kk[13], sums.d_sa);
        leave_token(14u, all_decay[14], all_kk[14], sums.d_sa);
        leave_token(15u, all_decay[15], all_kk[15], sums.d_sa);
        traced[D_SA * PLANE + own_place] = sums.d_sa;
        d_projected[2u * PLANE + own_place] += sums.dv;
    }
}
