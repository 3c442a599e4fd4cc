// A row of a head's state whose columns SHARES threads share: each owns OWN_EIGHTHS eights of them, and workgroup memory
// adds up what they sum over their columns. So a thread needs fewer registers. The shares of a row are HEAD_THREADS apart.

const OWN_EIGHTHS = EIGHTHS / SHARES;
const PARTS = SHARES * HEAD_THREADS; // of a sum: one for each thread

struct Own {
    row: u32,
    share: u32,
    first_eighth: u32,
}

var<workgroup> parts_of_sums: array<f32, 5u * PARTS>;

fn own_of(thread: u32) -> Own {
    let row = thread % HEAD_THREADS;
    let share = thread / HEAD_THREADS;
    return Own(row, share, share * OWN_EIGHTHS);
}

// Return true for the share that does what is to be done once a row.
fn is_first(own: Own) -> bool {
    return own.share == 0u;
}

fn sum_of_parts(own: Own, number: u32) -> f32 {
    var sum = 0.0;
    for (var share = 0u; share < SHARES; share++) {
        sum += parts_of_sums[number * PARTS + share * HEAD_THREADS + own.row];
    }
    return sum;
}

// Return the sums over a row's columns, of each of which the thread has a part. It is called by all threads together, and
// again only after another barrier.
fn add_up(own: Own, parts: vec4<f32>) -> vec4<f32> {
    let place = own.share * HEAD_THREADS + own.row;
    for (var sum = 0u; sum < 4u; sum++) {
        parts_of_sums[sum * PARTS + place] = parts[sum];
    }
    workgroupBarrier();
    return vec4<f32>(sum_of_parts(own, 0u), sum_of_parts(own, 1u), sum_of_parts(own, 2u), sum_of_parts(own, 3u));
}

// Do the same for one sum, which may follow on one of `add_up` without another barrier.
fn add_up_one(own: Own, part: f32) -> f32 {
    parts_of_sums[4u * PARTS + own.share * HEAD_THREADS + own.row] = part;
    workgroupBarrier();
    return sum_of_parts(own, 4u);
}
