// The result of a search for candidates in a row: its read-out.
@group(0) @binding(3) var<storage, read_write> readout: array<Readout>; // [R]

fn write_found(row: u32, part: u32, thread: u32, masses: Masses, count: u32) {
    let start = row * VOCAB;
    if thread == 0u {
        readout[row].logsumexp = masses.greatest + log(masses.sum);
        readout[row].allowed_logsumexp = masses.greatest_allowed + log(masses.sum_allowed);
        readout[row].target_logit = logits[start + batch.rows[row].target_id];
        readout[row].num_not_finite = masses.num_not_finite;
        readout[row].num_candidates = min(K, masses.num_allowed);
    }
    for (var own = thread; own < count; own += THREADS) {
        let key = taken_keys[own];
        let id = taken_ids[own];
        var place = 0u;
        for (var other = 0u; other < count; other++) {
            place += u32(taken_keys[other] > key || (taken_keys[other] == key && taken_ids[other] < id));
        }
        readout[row].ids[place] = id;
        readout[row].logits[place] = logits[start + id];
    }
}
