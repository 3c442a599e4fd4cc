// For each row of logits: log-sum-exp, the logit at the row's target, and the K greatest with their ids.
// One workgroup a row. The K-th greatest is found by radix select over keys that order as the logits do, eight bits a
// pass; equal logits at the threshold are taken by ascending id. The host sorts the K, which come in no order.

#include batch
@group(0) @binding(0) var<storage, read> batch: Batch;
@group(0) @binding(1) var<storage, read> logits: array<f32>;           // [R, VOCAB]
@group(0) @binding(2) var<storage, read_write> readout: array<Readout>; // [R]

struct Readout {
    logsumexp: f32,
    target_logit: f32,
    ids: array<u32, K>,
    logits: array<f32, K>,
}

var<workgroup> partial: array<f32, THREADS>;
var<workgroup> bins: array<atomic<u32>, 256>;
var<workgroup> num_taken: atomic<u32>;
var<workgroup> ties: array<u32, THREADS>;
var<workgroup> prefix: u32; // the leading bits of the K-th greatest key, found so far
var<workgroup> wanted: u32; // how many keys with that prefix are still to be taken

// A u32 that orders as the float does; both zeros are one.
fn order_key(value: f32) -> u32 {
    let bits = bitcast<u32>(select(value, 0.0, value == 0.0));
    return select(~bits, bits | 0x80000000u, bits < 0x80000000u);
}

fn take(row: u32, id: u32) {
    let place = atomicAdd(&num_taken, 1u);
    readout[row].ids[place] = id;
    readout[row].logits[place] = logits[row * VOCAB + id];
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group.x;
    let start = row * VOCAB;

    var greatest = logits[start];
    for (var id = thread; id < VOCAB; id += THREADS) {
        greatest = max(greatest, logits[start + id]);
    }
    partial[thread] = greatest;
    workgroupBarrier();
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        if thread < half {
            partial[thread] = max(partial[thread], partial[thread + half]);
        }
        workgroupBarrier();
    }
    greatest = partial[0];
    workgroupBarrier();
    var sum = 0.0;
    for (var id = thread; id < VOCAB; id += THREADS) {
        sum += exp(logits[start + id] - greatest);
    }
    partial[thread] = sum;
    workgroupBarrier();
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        if thread < half {
            partial[thread] += partial[thread + half];
        }
        workgroupBarrier();
    }
    if thread == 0u {
        readout[row].logsumexp = greatest + log(partial[0]);
        readout[row].target_logit = logits[start + batch.rows[row].target_id];
        prefix = 0u;
        wanted = K;
    }

    for (var shift = 24i; shift >= 0i; shift -= 8i) {
        let low = u32(shift);
        for (var bin = thread; bin < 256u; bin += THREADS) {
            atomicStore(&bins[bin], 0u);
        }
        let known = workgroupUniformLoad(&prefix);
        for (var id = thread; id < VOCAB; id += THREADS) {
            let key = order_key(logits[start + id]);
            if shift == 24i || (key >> (low + 8u)) == (known >> (low + 8u)) {
                atomicAdd(&bins[(key >> low) & 255u], 1u);
            }
        }
        workgroupBarrier();
        if thread == 0u {
            var bin = 255u;
            var count = atomicLoad(&bins[bin]);
            while count < wanted {
                wanted -= count;
                bin -= 1u;
                count = atomicLoad(&bins[bin]);
            }
            prefix = known | (bin << low);
            atomicStore(&num_taken, 0u);
        }
    }
    let threshold = workgroupUniformLoad(&prefix);
    let num_ties = workgroupUniformLoad(&wanted);

    let each = (VOCAB + THREADS - 1u) / THREADS;
    let first = min(thread * each, VOCAB);
    let end = min(first + each, VOCAB);
    var own_ties = 0u;
    for (var id = first; id < end; id++) {
        let key = order_key(logits[start + id]);
        own_ties += u32(key == threshold);
        if key > threshold {
            take(row, id);
        }
    }
    ties[thread] = own_ties;
    workgroupBarrier();
    var ties_before = 0u;
    for (var other = 0u; other < thread; other++) {
        ties_before += ties[other];
    }
    for (var id = first; id < end && ties_before < num_ties && own_ties > 0u; id++) {
        if order_key(logits[start + id]) == threshold {
            take(row, id);
            ties_before += 1u;
        }
    }
}
