// The input of one step. The host writes it before a step, and nearly every kernel reads it. draw.wgsl and follow.wgsl
// change it: draw.wgsl for the next step on the device, follow.wgsl at the start of a step.
// A run is a number of consecutive tokens of one slot. The tokens of all runs lie on one axis. A row is a token whose
// logits are computed.

struct Run {
    slot: u32,
    start: u32,  // index of the run's first token
    length: u32,     // 0 if the run has ended: its token is computed but not used, and its state does not change
    shift_side: u32, // 0 or 1: which of the slot's two copies of each shift is read; the other copy is written
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
    id: u32,  // or DRAWN_LAST, which follow.wgsl replaces by the token that was last drawn for the run's slot
}

struct Batch {
    num_tokens: u32,
    num_runs: u32,
    num_rows: u32,
    unused: u32,
    runs: array<Run, MAX_RUNS>,
    rows: array<Row, MAX_ROWS>,
    tokens: array<Token>, // MAX_TOKENS of them
}
