// Where the gradients of a head's state are kept, before every KEPT_EVERY-th token of a run: in KEPT_FOURS fours each,
// [MAX_TOKENS / KEPT_EVERY + slots, H, KEPT_FOURS, 4]. Their order is that of the threads that write and read them.

const KEPT_EVERY = 16u;
const KEPT_FOURS = 16u * EIGHTHS * EIGHTHS; // heads are padded to eights

// Return the index, in fours, at which the gradient before token `offset` of a run is kept. `offset` is a multiple of
// KEPT_EVERY.
fn kept_start(head: u32, run: u32, run_start: u32, offset: u32) -> u32 {
    let number = run_start / KEPT_EVERY + run + offset / KEPT_EVERY;
    return (number * (WIDTH / HEAD_SIZE) + head) * KEPT_FOURS;
}
