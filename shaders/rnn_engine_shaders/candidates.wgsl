// For each row of logits: log-sum-exp, the logit at the row's target, and the K greatest with their ids.
// A row may have a mask with a bit for each token. Its candidates are then the K greatest allowed tokens, or all
// allowed tokens if there are fewer.
// Either one workgroup searches the row. Or several do, each in a part of it (found_in_part), and the second kernel
// searches what they found (keys_of_parts).
// A radix select finds the K-th greatest item, eight bits in each pass: first of keys with the same order as the
// logits, then, where equal keys remain, of ids, of which the lesser come first. It ends once all items with the bits
// found so far are wanted. Then the K are ranked: the rank of each is the number of those before it.

#include batch
#include readout
#include sum_over_workgroup
#include max_over_workgroup
@group(0) @binding(0) var<storage, read> batch: Batch;
@group(0) @binding(1) var<storage, read> logits: array<f32>; // [R, VOCAB]

// The exponentials of a row's logits, or of a part of them, and how many there are.
struct Masses {
    greatest: f32,         // logit
    sum: f32,              // of exp(logit - greatest)
    greatest_allowed: f32, // the same of the tokens that the mask allows
    sum_allowed: f32,
    num_allowed: u32,
    num_not_finite: u32,   // logits that are infinite or NaN
}

// What a workgroup found in a part of a row.
struct Part {
    masses: Masses,
    keys: array<u32, K>, // in no order; 0 where there are fewer
    ids: array<u32, K>,
}

const LOWEST = -3.4e38;
const GROUP = 16u; // bins that are summed up before they are searched
const IDS_FROM = 4u; // the pass from which ids are compared
const NUM_PASSES = IDS_FROM + select(4u, select(3u, 2u, VOCAB <= 65536u), VOCAB <= 16777216u);

struct Search {
    key: u32,     // the leading bits of the K-th greatest item's key that are known so far
    id: u32,      // the same of its id's complement
    wanted: u32,  // how many items with these bits belong to the K greatest
    is_done: u32, // 1 once all of them do
}

var<workgroup> bins: array<atomic<u32>, 256>;
var<workgroup> groups: array<u32, 256u / GROUP>;
var<workgroup> num_taken: atomic<u32>;
var<workgroup> search: Search;
var<workgroup> taken_ids: array<u32, K>; // in no order
var<workgroup> taken_keys: array<u32, K>;

// Return a u32 with the same order as the float, and at least 1: 0 is no token. Both zeros have the same key.
fn order_key(value: f32) -> u32 {
    let bits = bitcast<u32>(select(value, 0.0, value == 0.0));
    return max(select(~bits, bits | 0x80000000u, bits < 0x80000000u), 1u);
}

#include logits_of_row
#include found_in_row

// Return the first of the bits that a pass compares.
fn lowest_bit(pass_number: u32) -> u32 {
    return 8u * (select(NUM_PASSES, IDS_FROM, pass_number < IDS_FROM) - 1u - pass_number);
}

// Count the keys of a turn in `bins`, by the eight bits that a pass compares, where those above are the known ones.
fn count_keys(row: u32, part: u32, turn: u32, thread: u32, keys: array<u32, LOADS>, pass_number: u32, known: Search) {
    let low = lowest_bit(pass_number);
    let above = select(0xffffff00u << low, 0u, pass_number % IDS_FROM == 0u);
    for (var i = 0u; i < LOADS; i++) {
        if keys[i] > 0u {
            if pass_number < IDS_FROM {
                if (keys[i] & above) == (known.key & above) {
                    atomicAdd(&bins[(keys[i] >> low) & 255u], 1u);
                }
            } else if keys[i] == known.key {
                let id = ~id_of(row, part, (turn * LOADS + i) * THREADS + thread);
                if (id & above) == (known.id & above) {
                    atomicAdd(&bins[(id >> low) & 255u], 1u);
                }
            }
        }
    }
}

// Return what is known after the counts of a pass.
fn narrow(known: Search, pass_number: u32) -> Search {
    let low = lowest_bit(pass_number);
    var next = known;
    var group = 256u / GROUP - 1u;
    while group > 0u && groups[group] < next.wanted {
        next.wanted -= groups[group];
        group -= 1u;
    }
    var bin = GROUP * group + GROUP - 1u;
    var count = atomicLoad(&bins[bin]);
    while bin > 0u && count < next.wanted {
        next.wanted -= count;
        bin -= 1u;
        count = atomicLoad(&bins[bin]);
    }
    next.is_done = u32(count == next.wanted);
    if pass_number < IDS_FROM {
        next.key |= bin << low;
    } else {
        next.id |= (bin | select(0u, 0xffffff00u, pass_number == IDS_FROM)) << low; // complements begin with ones
    }
    return next;
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group.x;
    let part = group.y;
    var keys = load_keys(row, part, 0u, thread);
    let masses = measure(row, part, thread);
    if thread == 0u { // the memory of a workgroup is not zeroed
        let wanted = min(K, masses.num_allowed);
        search = Search(0u, 0u, wanted, u32(wanted == masses.num_allowed));
        atomicStore(&num_taken, 0u);
    }
    var found = workgroupUniformLoad(&search);
    for (var pass_number = 0u; pass_number < NUM_PASSES && found.is_done == 0u; pass_number++) {
        for (var bin = thread; bin < 256u; bin += THREADS) {
            atomicStore(&bins[bin], 0u);
        }
        workgroupBarrier();
        for (var turn = 0u; turn < TURNS; turn++) {
            if TURNS > 1u {
                keys = load_keys(row, part, turn, thread);
            }
            count_keys(row, part, turn, thread, keys, pass_number, found);
        }
        workgroupBarrier();
        if thread < 256u / GROUP {
            var sum = 0u;
            for (var i = 0u; i < GROUP; i++) {
                sum += atomicLoad(&bins[GROUP * thread + i]);
            }
            groups[thread] = sum;
        }
        workgroupBarrier();
        if thread == 0u {
            search = narrow(found, pass_number);
        }
        found = workgroupUniformLoad(&search);
    }
    for (var turn = 0u; turn < TURNS; turn++) {
        if TURNS > 1u {
            keys = load_keys(row, part, turn, thread);
        }
        for (var i = 0u; i < LOADS; i++) {
            if keys[i] >= max(found.key, 1u) {
                let id = id_of(row, part, (turn * LOADS + i) * THREADS + thread);
                if keys[i] > found.key || ~id >= found.id {
                    let place = min(atomicAdd(&num_taken, 1u), K - 1u);
                    taken_keys[place] = keys[i];
                    taken_ids[place] = id;
                }
            }
        }
    }
    workgroupBarrier();
    write_found(row, part, thread, masses, atomicLoad(&num_taken));
}
