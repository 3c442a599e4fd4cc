// The backward pass of the recurrence of one head of size 64 over one run by rows, as in wkv_rows_backward.wgsl.
// Workgroups: (H, runs); a thread owns four rows of dS. See head_by_lanes.wgsl.

#include batch
@group(0) @binding(0) var<storage, read> batch: Batch;
@group(0) @binding(1) var<storage, read> projected: array<vec4<f32>>; // r: [MAX_TOKENS, WIDTH]
@group(0) @binding(2) var<storage, read> gates: array<vec4<f32>>;     // decay from DECAY_START on, RWKV-7's rate: [2, MAX_TOKENS, WIDTH]
@group(0) @binding(3) var<storage, read_write> traced: array<vec4<f32>>;      // see traced_planes.wgsl
@group(0) @binding(4) var<storage, read_write> d_projected: array<vec4<f32>>; // r, k, v: [3, MAX_TOKENS, WIDTH]; adds to dv

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
    if !REMOVES_KEYS {
        return Products(sums.dv + multiply_columns(quad, columns.key[quad]), vec4<f32>());
    }
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

// The gradient goes to the state before the token: through the decay, and through the token's reading of that state, the
// product of a gradient of the thread's rows with a vector of columns.
fn leave_token(quad: u32, decay: vec4<f32>, read: vec4<f32>, gradient: vec4<f32>) {
    ds[0][quad] = ds[0][quad] * decay + gradient.x * read;
    ds[1][quad] = ds[1][quad] * decay + gradient.y * read;
    ds[2][quad] = ds[2][quad] * decay + gradient.z * read;
    ds[3][quad] = ds[3][quad] * decay + gradient.w * read;
}

@compute @workgroup_size(HEAD_THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let run = batch.runs[group.y];
    let loaded = group.x * QUADS + 2u * (thread % LANES); // the first of two fours that this lane loads
    let owned = group.x * QUADS + thread;

    for (var left = run.length; left > 0u; left--) {
        let token = run.start + left - 1u;
        let place = token * (WIDTH / 4u) + loaded;
        let own_place = token * (WIDTH / 4u) + owned;
        let decay_place = (DECAY_START + token * DECAY_STRIDE) / 4u + loaded;
        var receptance: Own;
        var decay: Own;
        var key: Own;
        var read: Own; // RWKV-7's token reads sa by a = -kk, others y by r
        var rate: Own;
        for (var q = 0u; q < 2u; q++) {
            receptance[q] = projected[place + q];
            decay[q] = gates[decay_place + q];
            key[q] = traced[KEY * PLANE + place + q];
            read[q] = receptance[q];
            if REMOVES_KEYS {
                read[q] = -traced[UNIT_KK * PLANE + place + q];
                rate[q] = -read[q] * gates[PLANE + place + q];
            }
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
        let all_read = whole(read);
        let gradient = select(dy, sums.d_sa, REMOVES_KEYS);
        leave_token(0u, all_decay[0], all_read[0], gradient);
        leave_token(1u, all_decay[1], all_read[1], gradient);
        leave_token(2u, all_decay[2], all_read[2], gradient);
        leave_token(3u, all_decay[3], all_read[3], gradient);
        leave_token(4u, all_decay[4], all_read[4], gradient);
        leave_token(5u, all_decay[5], all_read[5], gradient);
        leave_token(6u, all_decay[6], all_read[6], gradient);
        leave_token(7u, all_decay[7], all_read[7], gradient);
        leave_token(8u, all_decay[8], all_read[8], gradient);
        leave_token(9u, all_decay[9], all_read[9], gradient);
        leave_token(10u, all_decay[10], all_read[10], gradient);
        leave_token(11u, all_decay[11], all_read[11], gradient);
        leave_token(12u, all_decay[12], all_read[12], gradient);
        leave_token(13u, all_decay[13], all_read[13], gradient);
        leave_token(14u, all_decay[14], all_read[14], gradient);
        leave_token(15u, all_decay[15], all_read[15], gradient);
        if REMOVES_KEYS {
            traced[D_SA * PLANE + own_place] = sums.d_sa;
        }
        d_projected[2u * PLANE + own_place] += sums.dv;
    }
}
