// The result of a search for candidates in a part of a row.
@group(0) @binding(3) var<storage, read_write> parts: array<Part>; // [R, PARTS]

fn write_found(row: u32, part: u32, thread: u32, masses: Masses, count: u32) {
    let place = row * PARTS + part;
    if thread == 0u {
        parts[place].masses = masses;
    }
    for (var i = thread; i < K; i += THREADS) {
        parts[place].keys[i] = select(0u, taken_keys[i], i < count);
        parts[place].ids[i] = taken_ids[i];
    }
}
