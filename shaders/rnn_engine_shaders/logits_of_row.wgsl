// The items of a search for candidates: the PART_SIZE logits of a part of a row, or of all of it.
@group(0) @binding(2) var<storage, read> masks: array<u32>; // [masks, MASK_WORDS]

const MASK_WORDS = (VOCAB + 31u) / 32u;

var<workgroup> num_not_finite: atomic<u32>;
var<workgroup> num_allowed: atomic<u32>;

fn id_of(row: u32, part: u32, index: u32) -> u32 {
    return part * PART_SIZE + index;
}

// Return how many items a part has.
fn size_of(part: u32) -> u32 {
    return min(PART_SIZE, VOCAB - part * PART_SIZE);
}

fn is_allowed(mask: u32, id: u32) -> bool {
    if !HAS_MASKS || mask == NO_MASK {
        return true;
    }
    return ((masks[mask * MASK_WORDS + id / 32u] >> (id % 32u)) & 1u) == 1u;
}

// Load the LOADS logits of a turn at once, since hardware then waits once for all of them.
fn load_logits(row: u32, part: u32, turn: u32, thread: u32) -> array<f32, LOADS> {
    var values: array<f32, LOADS>;
    let start = row * VOCAB + part * PART_SIZE;
    for (var i = 0u; i < LOADS; i++) {
        values[i] = logits[start + min((turn * LOADS + i) * THREADS + thread, size_of(part) - 1u)];
    }
    return values;
}

// The same as keys, 0 where there is no allowed token. Compilers move a load to its first use, so keys are computed
// before any branch that uses one.
fn load_keys(row: u32, part: u32, turn: u32, thread: u32) -> array<u32, LOADS> {
    var keys: array<u32, LOADS>;
    let values = load_logits(row, part, turn, thread);
    let mask = batch.rows[row].mask;
    for (var i = 0u; i < LOADS; i++) {
        let index = (turn * LOADS + i) * THREADS + thread;
        let is_item = index < size_of(part) && is_allowed(mask, id_of(row, part, index));
        keys[i] = select(0u, order_key(values[i]), is_item);
    }
    return keys;
}

fn measure(row: u32, part: u32, thread: u32) -> Masses {
    let size = size_of(part);
    let mask = batch.rows[row].mask;
    var values = load_logits(row, part, 0u, thread);
    if thread == 0u {
        atomicStore(&num_not_finite, 0u);
        atomicStore(&num_allowed, select(0u, size, !HAS_MASKS || mask == NO_MASK));
    }
    workgroupBarrier();
    var own_greatest = LOWEST;
    var own_not_finite = 0u;
    for (var turn = 0u; turn < TURNS; turn++) {
        if TURNS > 1u {
            values = load_logits(row, part, turn, thread);
        }
        for (var i = 0u; i < LOADS; i++) {
            own_greatest = max(own_greatest, values[i]);
            let is_finite = (bitcast<u32>(values[i]) & 0x7f800000u) != 0x7f800000u; // drivers differ in comparing NaN
            own_not_finite += u32(((turn * LOADS + i) * THREADS + thread < size) & !is_finite);
        }
    }
    if own_not_finite > 0u {
        atomicAdd(&num_not_finite, own_not_finite);
    }
    let greatest = max_over_workgroup(own_greatest, thread);
    var own_sum = 0.0;
    for (var turn = 0u; turn < TURNS; turn++) {
        if TURNS > 1u {
            values = load_logits(row, part, turn, thread);
        }
        for (var i = 0u; i < LOADS; i++) {
            own_sum += select(0.0, exp(values[i] - greatest), (turn * LOADS + i) * THREADS + thread < size);
        }
    }
    let sum = sum_over_workgroup(own_sum, thread);
    var greatest_allowed = greatest;
    var sum_allowed = sum;
    if HAS_MASKS && mask != NO_MASK {
        var own_allowed = 0u;
        var own_greatest_allowed = LOWEST;
        for (var turn = 0u; turn < TURNS; turn++) {
            let keys = load_keys(row, part, turn, thread);
            values = load_logits(row, part, turn, thread);
            for (var i = 0u; i < LOADS; i++) {
                own_allowed += u32(keys[i] > 0u);
                own_greatest_allowed = select(own_greatest_allowed, max(own_greatest_allowed, values[i]), keys[i] > 0u);
            }
        }
        atomicAdd(&num_allowed, own_allowed);
        greatest_allowed = max_over_workgroup(own_greatest_allowed, thread);
        var own_sum_allowed = 0.0;
        for (var turn = 0u; turn < TURNS; turn++) {
            let keys = load_keys(row, part, turn, thread);
            values = load_logits(row, part, turn, thread);
            for (var i = 0u; i < LOADS; i++) {
                own_sum_allowed += select(0.0, exp(values[i] - greatest_allowed), keys[i] > 0u);
            }
        }
        sum_allowed = sum_over_workgroup(own_sum_allowed, thread);
    }
    workgroupBarrier();
    return Masses(
        greatest, sum, greatest_allowed, sum_allowed, atomicLoad(&num_allowed), atomicLoad(&num_not_finite)
    );
}
