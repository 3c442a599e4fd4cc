// The backward pass of the recurrence of one head over one run, from its end: the gradients of k, of RWKV-7's b, and of
// the state before the run. Workgroups: (H, runs); thread j owns column j of dS [value, key].
//   RWKV-7:        dS += dy r^T;     dk = dS^T v;     db = dS^T sa;     dS = dS * decay + dsa a^T
//   RWKV-5 and 6:  dk = dS^T v;     dS = dS * decay + dy r^T
// Keeps dS before every 16th token of the run for wkv_decay_backward.wgsl. For the names see wkv_rows_backward.wgsl.

#include batch
@group(0) @binding(0) var<storage, read> batch: Batch;
@group(0) @binding(1) var<storage, read> projected: array<f32>; // r: [MAX_TOKENS, WIDTH]
@group(0) @binding(2) var<storage, read> gates: array<f32>;     // decay, from DECAY_START on: [MAX_TOKENS, WIDTH]
@group(0) @binding(3) var<storage, read> traced: array<f32>;    // see traced_planes.wgsl
@group(0) @binding(4) var<storage, read_write> d_projected: array<f32>; // [3, MAX_TOKENS, WIDTH]; dk
@group(0) @binding(5) var<storage, read_write> d_gates: array<f32>;     // [2, MAX_TOKENS, WIDTH]; RWKV-7's db in the second plane
@group(0) @binding(6) var<storage, read_write> kept: array<vec4<f32>>;  // see kept_gradients.wgsl
@group(0) @binding(7) var<storage, read_write> state_gradients: array<f32>; // [slots, STATE_STRIDE]; wkv: [H, HEAD_THREADS / 4, N, 4]

#include columns

@compute @workgroup_size(HEAD_THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) column: u32) {
    let run = batch.runs[group.y];
    let is_real = column < HEAD_SIZE;
    let channel = group.x * HEAD_SIZE + min(column, HEAD_SIZE - 1u);
    var ds: array<Eight, EIGHTHS>; // see wkv7.wgsl

    for (var left = run.length; left > 0u; left--) {
        let token = run.start + left - 1u;
        let place = token * WIDTH + channel;
        share_rows(column, place);
        workgroupBarrier();

        let r = projected[place];
        let decay = gates[DECAY_START + token * DECAY_STRIDE + channel];
        var kk = 0.0;
        if REMOVES_KEYS {
            kk = traced[UNIT_KK * PLANE + place];
        }
        var dk = 0.0;
        var db = 0.0;
        for (var i = 0u; i < EIGHTHS; i++) {
            let dy = load_eight(OWN_DY, i, column);
            let v = load_eight(OWN_V, i, column);
            if REMOVES_KEYS {
                let sa = load_eight(OWN_SA, i, column);
                let dsa = load_eight(OWN_DSA, i, column);
                let low = ds[i].low + r * dy.low;
                let high = ds[i].high + r * dy.high;
                dk += dot(low, v.low) + dot(high, v.high);
                db += dot(low, sa.low) + dot(high, sa.high);
                ds[i] = Eight(low * decay - kk * dsa.low, high * decay - kk * dsa.high);
            } else {
                dk += dot(ds[i].low, v.low) + dot(ds[i].high, v.high);
                ds[i] = Eight(ds[i].low * decay + r * dy.low, ds[i].high * decay + r * dy.high);
            }
        }
        if is_real {
            d_projected[PLANE + place] = dk;
            if REMOVES_KEYS {
                d_gates[PLANE + place] = db;
            }
        }
        if (left - 1u) % KEPT_EVERY == 0u {
            let start = kept_start(group.x, group.y, run.start, left - 1u) + column;
            for (var i = 0u; i < EIGHTHS; i++) {
                kept[start + 2u * i * HEAD_THREADS] = ds[i].low;
                kept[start + (2u * i + 1u) * HEAD_THREADS] = ds[i].high;
            }
        }
        workgroupBarrier();
    }

    if is_real {
        let start = run.slot * STATE_STRIDE + WKV_OFFSET + group.x * HEAD_THREADS * HEAD_SIZE;
        let first = start + column / 4u * 4u * HEAD_SIZE + column % 4u;
        for (var i = 0u; i < EIGHTHS; i++) {
            for (var part = 0u; part < 8u; part++) {
                if 8u * i + part < HEAD_SIZE {
                    let value = select(ds[i].high[part % 4u], ds[i].low[part % 4u], part < 4u);
                    state_gradients[first + 4u * (8u * i + part)] = value;
                }
            }
        }
    }
}
