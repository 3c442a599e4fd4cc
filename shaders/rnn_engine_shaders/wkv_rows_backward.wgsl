// The backward pass of the recurrence of one head over one run, from its end: the gradients of v and of sa.
// Workgroups: (H, runs); thread i owns row i of dS [value, key], the gradient of the state, in registers.
//   RWKV-7:        dS += dy r^T;     dv = dS k;     dsa = dS b;     dS = dS * decay + dsa a^T
//   RWKV-5 and 6:  dv = dS k;     dS = dS * decay + dy r^T
// REMOVES_KEYS is true for RWKV-7, whose a is -kk, and b is kk * the in-context rate. Each decay is that of a token; if
// DECAY_STRIDE is 0, all tokens share one.

#include batch
@group(0) @binding(0) var<storage, read> batch: Batch;
@group(0) @binding(1) var<storage, read> projected: array<f32>; // r: [MAX_TOKENS, WIDTH]
@group(0) @binding(2) var<storage, read> gates: array<f32>;     // decay from DECAY_START on, RWKV-7's rate: [2, MAX_TOKENS, WIDTH]
@group(0) @binding(3) var<storage, read_write> traced: array<f32>;      // see traced_planes.wgsl
@group(0) @binding(4) var<storage, read_write> d_projected: array<f32>; // r, k, v: [3, MAX_TOKENS, WIDTH]; adds to dv

const PLANE = MAX_TOKENS * WIDTH;

const R = 0u;
const DECAY = 1u;
const RATED_K = 2u;
const OWN_KK = 3u;
const RATED_KK = 4u;
const HEAD_VECTORS = 5u;

#include traced_planes
#include head

@compute @workgroup_size(HEAD_THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) row: u32) {
    let run = batch.runs[group.y];
    let is_real = row < HEAD_SIZE;
    let channel = group.x * HEAD_SIZE + min(row, HEAD_SIZE - 1u);
    var ds: array<Eight, EIGHTHS>; // see wkv7.wgsl
    if REMOVES_KEYS && run.length > 0u {
        let last = (run.start + run.length - 1u) * WIDTH + channel;
        set_vector(R, row, projected[last]);
        workgroupBarrier();
        let dy = traced[D_Y * PLANE + last];
        for (var j = 0u; j < EIGHTHS; j++) {
            let receptance = load_eight(R, j, row);
            ds[j] = Eight(dy * receptance.low, dy * receptance.high);
        }
        workgroupBarrier();
    }

    for (var left = run.length; left > 0u; left--) {
        let token = run.start + left - 1u;
        let place = token * WIDTH + channel;
        // The token whose dy r^T is added to dS when dS is decayed. In RWKV-7 it is the one before, for which dS is then
        // ready. If dS changed twice for a token, compilers would keep both in registers.
        let added = select(place, place - WIDTH, REMOVES_KEYS && left > 1u);
        set_vector(R, row, projected[added]);
        set_vector(DECAY, row, gates[DECAY_START + token * DECAY_STRIDE + channel]);
        set_vector(RATED_K, row, traced[KEY * PLANE + place]);
        if REMOVES_KEYS {
            let kk = traced[UNIT_KK * PLANE + place];
            set_vector(OWN_KK, row, kk);
            set_vector(RATED_KK, row, kk * gates[PLANE + place]);
        }
        workgroupBarrier();

        let dy = select(traced[D_Y * PLANE + added], 0.0, REMOVES_KEYS && left == 1u);
        var dv = 0.0;
        var dsa = 0.0;
        for (var j = 0u; j < EIGHTHS; j++) {
            let key = load_eight(RATED_K, j, row);
            if REMOVES_KEYS {
                let rate = load_eight(RATED_KK, j, row);
                dsa += dot(ds[j].low, rate.low) + dot(ds[j].high, rate.high);
            }
            dv += dot(ds[j].low, key.low) + dot(ds[j].high, key.high);
        }
        for (var j = 0u; j < EIGHTHS; j++) {
            let decay = load_eight(DECAY, j, row);
            let receptance = load_eight(R, j, row);
            var low = dy * receptance.low;
            var high = dy * receptance.high;
            if REMOVES_KEYS {
                let kk = load_eight(OWN_KK, j, row);
                low -= dsa * kk.low;
                high -= dsa * kk.high;
            }
            ds[j] = Eight(fma(ds[j].low, decay.low, low), fma(ds[j].high, decay.high, high));
        }
        if is_real {
            if REMOVES_KEYS {
                traced[D_SA * PLANE + place] = dsa;
            }
            d_projected[2u * PLANE + place] += dv;
        }
        workgroupBarrier();
    }
}
