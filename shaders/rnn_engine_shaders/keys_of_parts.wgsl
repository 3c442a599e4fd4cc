// The items of a search for candidates: those that workgroups found in PARTS parts of a row.
@group(0) @binding(2) var<storage, read> parts: array<Part>; // [R, PARTS]

var<workgroup> num_not_finite: atomic<u32>;
var<workgroup> num_allowed: atomic<u32>;

fn id_of(row: u32, part: u32, index: u32) -> u32 {
    return parts[row * PARTS + index / K].ids[index % K];
}

fn load_keys(row: u32, part: u32, turn: u32, thread: u32) -> array<u32, LOADS> {
    var keys: array<u32, LOADS>;
    for (var i = 0u; i < LOADS; i++) {
        let index = min((turn * LOADS + i) * THREADS + thread, PARTS * K - 1u);
        keys[i] = parts[row * PARTS + index / K].keys[index % K];
    }
    for (var i = 0u; i < LOADS; i++) {
        keys[i] = select(0u, keys[i], (turn * LOADS + i) * THREADS + thread < PARTS * K);
    }
    return keys;
}

fn measure(row: u32, part: u32, thread: u32) -> Masses {
    if thread == 0u {
        atomicStore(&num_not_finite, 0u);
        atomicStore(&num_allowed, 0u);
    }
    workgroupBarrier();
    var own_greatest = LOWEST;
    var own_greatest_allowed = LOWEST;
    for (var i = thread; i < PARTS; i += THREADS) {
        let masses = parts[row * PARTS + i].masses;
        own_greatest = max(own_greatest, masses.greatest);
        own_greatest_allowed = max(own_greatest_allowed, masses.greatest_allowed);
        atomicAdd(&num_not_finite, masses.num_not_finite);
        atomicAdd(&num_allowed, masses.num_allowed);
    }
    let greatest = max_over_workgroup(own_greatest, thread);
    let greatest_allowed = max_over_workgroup(own_greatest_allowed, thread);
    var own_sum = 0.0;
    var own_sum_allowed = 0.0;
    for (var i = thread; i < PARTS; i += THREADS) {
        let masses = parts[row * PARTS + i].masses;
        own_sum += masses.sum * exp(masses.greatest - greatest);
        own_sum_allowed += masses.sum_allowed * exp(masses.greatest_allowed - greatest_allowed);
    }
    let sum = sum_over_workgroup(own_sum, thread);
    let sum_allowed = sum_over_workgroup(own_sum_allowed, thread);
    return Masses(
        greatest, sum, greatest_allowed, sum_allowed, atomicLoad(&num_allowed), atomicLoad(&num_not_finite)
    );
}
