// The recurrence of one head over one run once more, by columns: the gradients of r, of RWKV-7's a and of the decay.
// Workgroups: (H, runs); thread j owns column j of S [value, key] and walks the tokens in order.
//   RWKV-7:        da = S^T dsa;     S = S * decay + sa b^T + v k^T;     dr = S^T dy
//   RWKV-5 and 6:  dr = S^T dy;     S = S * decay + v k^T
// The gradient of the decay is the sum of dS * S over rows, which needs no dS of each token: with E, the sum of S * dS
// before a token, which the kept dS give every 16 tokens,
//   RWKV-7:        decay * d_decay = E - a da;     E of the next token = decay * d_decay + k dk + b db - r dr
//   RWKV-5 and 6:  decay * d_decay = E - r dr;     E of the next token = decay * d_decay + k dk
// For the names see wkv_rows_backward.wgsl.

#include batch
@group(0) @binding(0) var<storage, read> batch: Batch;
@group(0) @binding(1) var<storage, read> projected: array<f32>; // r: [MAX_TOKENS, WIDTH]
@group(0) @binding(2) var<storage, read> gates: array<f32>;     // decay from DECAY_START on, RWKV-7's rate: [2, MAX_TOKENS, WIDTH]
@group(0) @binding(3) var<storage, read> state: array<f32>;     // [slots, STATE_STRIDE]; wkv: [H, HEAD_THREADS / 4, N, 4]
@group(0) @binding(4) var<storage, read_write> traced: array<f32>;      // see traced_planes.wgsl
@group(0) @binding(5) var<storage, read_write> d_projected: array<f32>; // [3, MAX_TOKENS, WIDTH]; dr, and dk to read
@group(0) @binding(6) var<storage, read_write> d_gates: array<f32>;     // [2, MAX_TOKENS, WIDTH]; decay * d_decay, and db to read
@group(0) @binding(7) var<storage, read> kept: array<vec4<f32>>;        // see kept_gradients.wgsl

#include columns

@compute @workgroup_size(HEAD_THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) column: u32) {
    let run = batch.runs[group.y];
    let is_real = column < HEAD_SIZE;
    let real_column = min(column, HEAD_SIZE - 1u);
    let channel = group.x * HEAD_SIZE + real_column;
    let state_start = run.slot * STATE_STRIDE + WKV_OFFSET + group.x * HEAD_THREADS * HEAD_SIZE;
    let first = state_start + real_column / 4u * 4u * HEAD_SIZE + real_column % 4u;
    var s: array<Eight, EIGHTHS>; // see wkv7.wgsl
    for (var i = 0u; i < EIGHTHS; i++) {
        s[i] = Eight(four_rows(first, 8u * i), four_rows(first, 8u * i + 4u));
    }
    var e = 0.0;

    for (var offset = 0u; offset < run.length; offset++) {
        let token = run.start + offset;
        let place = token * WIDTH + channel;
        if offset % KEPT_EVERY == 0u {
            let start = kept_start(group.x, group.y, run.start, offset) + column;
            e = 0.0;
            for (var i = 0u; i < EIGHTHS; i++) {
                e += dot(s[i].low, kept[start + 2u * i * HEAD_THREADS]);
                e += dot(s[i].high, kept[start + (2u * i + 1u) * HEAD_THREADS]);
            }
        }
        share_rows(column, place);
        workgroupBarrier();

        let r = projected[place];
        let decay = gates[DECAY_START + token * DECAY_STRIDE + channel];
        let key = traced[KEY * PLANE + place];
        let dk = d_projected[PLANE + place];
        var dr = 0.0;
        var d_decay = 0.0; // times the decay
        if REMOVES_KEYS {
            let kk = traced[UNIT_KK * PLANE + place];
            let rate = kk * gates[PLANE + place];
            var da = 0.0;
            for (var i = 0u; i < EIGHTHS; i++) {
                let dy = load_eight(OWN_DY, i, column);
                let v = load_eight(OWN_V, i, column);
                let sa = load_eight(OWN_SA, i, column);
                let dsa = load_eight(OWN_DSA, i, column);
                da += dot(s[i].low, dsa.low) + dot(s[i].high, dsa.high);
                let low = s[i].low * decay + rate * sa.low + key * v.low;
                let high = s[i].high * decay + rate * sa.high + key * v.high;
                s[i] = Eight(low, high);
                dr += dot(low, dy.low) + dot(high, dy.high);
            }
            d_decay = e + kk * da;
            e = d_decay + rate * d_gates[PLANE + place] + key * dk - r * dr;
            if is_real {
                traced[D_REMOVED * PLANE + place] = da;
            }
        } else {
            for (var i = 0u; i < EIGHTHS; i++) {
                let dy = load_eight(OWN_DY, i, column);
                let v = load_eight(OWN_V, i, column);
                dr += dot(s[i].low, dy.low) + dot(s[i].high, dy.high);
                s[i] = Eight(s[i].low * decay + key * v.low, s[i].high * decay + key * v.high);
            }
            d_decay = e - r * dr;
            e = d_decay + key * dk;
        }
        if is_real {
            d_projected[place] = dr;
            d_gates[place] = d_decay;
        }
        workgroupBarrier();
    }
}

// Return four of the rows of a column of the state, from row `row` on. Surplus rows are zeros.
fn four_rows(first: u32, row: u32) -> vec4<f32> {
    var four: vec4<f32>;
    for (var i = 0u; i < 4u; i++) {
        four[i] = select(0.0, state[first + 4u * min(row + i, HEAD_SIZE - 1u)], row + i < HEAD_SIZE);
    }
    return four;
}
