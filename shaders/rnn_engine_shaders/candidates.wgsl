// For each row of logits: log-sum-exp, the logit at the row's target, and the K greatest with their ids.
// A row may have a mask with a bit for each token. Its candidates are then the K greatest allowed tokens, or all
// allowed tokens if there are fewer. One workgroup per row.
// A radix select finds the K-th greatest logit, eight bits in each pass, over keys with the same order as the logits.
// Equal logits at the threshold are taken by ascending id. Then the K are ranked: the rank of each is the number of
// those before it.

#include batch
#include readout
#include sum_over_workgroup
#include max_over_workgroup
@group(0) @binding(0) var<storage, read> batch: Batch;
@group(0) @binding(1) var<storage, read> logits: array<f32>;           // [R, VOCAB]
@group(0) @binding(2) var<storage, read> masks: array<u32>;            // [masks, MASK_WORDS]
@group(0) @binding(3) var<storage, read_write> readout: array<Readout>; // [R]

const MASK_WORDS = (VOCAB + 31u) / 32u;

var<workgroup> bins: array<atomic<u32>, 256>;
var<workgroup> num_taken: atomic<u32>;
var<workgroup> num_not_finite: atomic<u32>;
var<workgroup> num_allowed: atomic<u32>;
var<workgroup> ties: array<u32, THREADS>;
var<workgroup> taken_ids: array<u32, K>; // in no order
var<workgroup> taken_logits: array<f32, K>;
var<workgroup> prefix: u32; // the leading bits of the K-th greatest key that are known so far
var<workgroup> wanted: u32; // how many keys with that prefix belong to the K greatest

// Return a u32 with the same order as the float. Both zeros have the same key.
fn order_key(value: f32) -> u32 {
    let bits = bitcast<u32>(select(value, 0.0, value == 0.0));
    return select(~bits, bits | 0x80000000u, bits < 0x80000000u);
}

// Load LOADS logits of a row, `stride` ids apart, at once, since hardware then waits once for all of them.
fn load_logits(start: u32, first: u32, stride: u32) -> array<f32, LOADS> {
    var values: array<f32, LOADS>;
    for (var i = 0u; i < LOADS; i++) {
        values[i] = logits[start + min(first + i * stride, VOCAB - 1u)];
    }
    return values;
}

// The same as keys. Compilers move a load to its first use; keys are computed before any branch that uses one.
fn load_keys(start: u32, first: u32, stride: u32) -> array<u32, LOADS> {
    var keys: array<u32, LOADS>;
    let values = load_logits(start, first, stride);
    for (var i = 0u; i < LOADS; i++) {
        keys[i] = order_key(values[i]);
    }
    return keys;
}

fn is_allowed(mask: u32, id: u32) -> bool {
    if !HAS_MASKS || mask == NO_MASK {
        return true;
    }
    return ((masks[mask * MASK_WORDS + id / 32u] >> (id % 32u)) & 1u) == 1u;
}

fn take(row: u32, id: u32) {
    let place = atomicAdd(&num_taken, 1u);
    taken_ids[place] = id;
    taken_logits[place] = logits[row * VOCAB + id];
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group.x;
    let start = row * VOCAB;
    let mask = batch.rows[row].mask;

    if thread == 0u { // the memory of a workgroup is not zeroed
        atomicStore(&num_not_finite, 0u);
        atomicStore(&num_allowed, select(0u, VOCAB, !HAS_MASKS || mask == NO_MASK));
    }
    workgroupBarrier();
    var own_greatest = logits[start];
    var own_not_finite = 0u;
    for (var first = thread; first < VOCAB; first += LOADS * THREADS) {
        let values = load_logits(start, first, THREADS);
        for (var i = 0u; i < LOADS; i++) {
            own_greatest = max(own_greatest, values[i]);
            let is_finite = (bitcast<u32>(values[i]) & 0x7f800000u) != 0x7f800000u; // drivers differ in comparing NaN
            own_not_finite += u32((first + i * THREADS < VOCAB) & !is_finite);
        }
    }
    if own_not_finite > 0u {
        atomicAdd(&num_not_finite, own_not_finite);
    }
    let greatest = max_over_workgroup(own_greatest, thread);
    var own_sum = 0.0;
    for (var first = thread; first < VOCAB; first += LOADS * THREADS) {
        let values = load_logits(start, first, THREADS);
        for (var i = 0u; i < LOADS; i++) {
            own_sum += select(0.0, exp(values[i] - greatest), first + i * THREADS < VOCAB);
        }
    }
    let logsumexp = greatest + log(sum_over_workgroup(own_sum, thread));

    var allowed_logsumexp = logsumexp;
    if HAS_MASKS && mask != NO_MASK {
        var own_allowed = 0u;
        var own_greatest_allowed = -3.4e38;
        for (var id = thread; id < VOCAB; id += THREADS) {
            if is_allowed(mask, id) {
                own_allowed += 1u;
                own_greatest_allowed = max(own_greatest_allowed, logits[start + id]);
            }
        }
        atomicAdd(&num_allowed, own_allowed);
        let greatest_allowed = max_over_workgroup(own_greatest_allowed, thread);
        var own_sum_allowed = 0.0;
        for (var id = thread; id < VOCAB; id += THREADS) {
            if is_allowed(mask, id) {
                own_sum_allowed += exp(logits[start + id] - greatest_allowed);
            }
        }
        allowed_logsumexp = greatest_allowed + log(sum_over_workgroup(own_sum_allowed, thread));
    }
    workgroupBarrier();
    if thread == 0u {
        readout[row].logsumexp = logsumexp;
        readout[row].allowed_logsumexp = allowed_logsumexp;
        readout[row].target_logit = logits[start + batch.rows[row].target_id];
        readout[row].num_not_finite = atomicLoad(&num_not_finite);
        prefix = 0u;
        wanted = min(K, atomicLoad(&num_allowed));
        readout[row].num_candidates = wanted;
    }

    for (var shift = 24i; shift >= 0i; shift -= 8i) {
        let low = u32(shift);
        for (var bin = thread; bin < 256u; bin += THREADS) {
            atomicStore(&bins[bin], 0u);
        }
        let known = workgroupUniformLoad(&prefix);
        for (var first = thread; first < VOCAB; first += LOADS * THREADS) {
            let keys = load_keys(start, first, THREADS);
            for (var i = 0u; i < LOADS; i++) {
                let id = first + i * THREADS;
                let key = keys[i];
                let has_prefix = shift == 24i || (key >> (low + 8u)) == (known >> (low + 8u));
                if id < VOCAB && has_prefix && is_allowed(mask, id) {
                    atomicAdd(&bins[(key >> low) & 255u], 1u);
                }
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
    for (var next = first; next < end; next += LOADS) {
        let keys = load_keys(start, next, 1u);
        for (var i = 0u; i < LOADS; i++) {
            if next + i < end && keys[i] >= threshold && is_allowed(mask, next + i) {
                own_ties += u32(keys[i] == threshold);
                if keys[i] > threshold {
                    take(row, next + i);
                }
            }
        }
    }
    ties[thread] = own_ties;
    workgroupBarrier();
    var ties_before = 0u;
    for (var other = 0u; other < thread; other++) {
        ties_before += ties[other];
    }
    for (var id = first; id < end && ties_before < num_ties && own_ties > 0u; id++) {
        if order_key(logits[start + id]) == threshold && is_allowed(mask, id) {
            take(row, id);
            ties_before += 1u;
        }
    }

    workgroupBarrier();
    let count = atomicLoad(&num_taken);
    for (var own = thread; own < count; own += THREADS) {
        let logit = taken_logits[own];
        let id = taken_ids[own];
        var place = 0u;
        for (var other = 0u; other < count; other++) {
            let is_equal = taken_logits[other] == logit;
            place += u32(taken_logits[other] > logit || (is_equal && taken_ids[other] < id));
        }
        readout[row].ids[place] = id;
        readout[row].logits[place] = logit;
    }
}
