// What one step runs. Written by the host before a step, read by nearly every kernel, and changed by draw.wgsl for the
// step that follows in the same submit.
// A run is consecutive tokens of one slot; tokens of all runs lie on one axis; a row is a token whose logits are wanted.

struct Run {
    slot: u32,
    start: u32,  // index of the run's first token
    length: u32,     // 0 where the run has ended: its token is computed in vain, and its state stays as it is
    shift_side: u32, // which of the slot's two copies of each shift is read; the other one is written
}

const NO_MASK = 0xffffffffu;

struct Row {
    token: u32,   // index of the token that the row belongs to
    target_id: u32, // token id whose logit is read out
    mask: u32,    // index of its mask in the step's masks, or NO_MASK
}

const DRAWN_LAST = 0xffffffffu;

struct Token {
    run: u32, // index of its run
    id: u32,  // or DRAWN_LAST: what the run's slot has drawn last, which follow.wgsl puts here
}

struct Batch {
    num_tokens: u32,
    num_runs: u32,
    num_rows: u32,
    unused: u32,
    runs: array<Run, MAX_RUNS>,
    rows: array<Row, MAX_ROWS>,
    tokens: array<Token, MAX_TOKENS>,
}
