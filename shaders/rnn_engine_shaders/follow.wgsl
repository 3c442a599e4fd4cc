// Give each following run its token: the one that was last drawn for its slot. This is the first dispatch of a step.
// If that draw has halted, the run gets the length 0. One thread per row, since such a run has one row.

#include batch
#include last_drawn
@group(0) @binding(0) var<storage, read_write> batch: Batch;
@group(0) @binding(1) var<storage, read> last_drawn: array<u32>; // [slots]

@compute @workgroup_size(THREADS)
fn main(@builtin(global_invocation_id) thread: vec3<u32>) {
    let row = thread.x;
    if row >= batch.num_rows {
        return;
    }
    let token_index = batch.rows[row].token;
    if batch.tokens[token_index].id != DRAWN_LAST {
        return;
    }
    let run = batch.tokens[token_index].run;
    let token = last_drawn[batch.runs[run].slot];
    batch.tokens[token_index].id = select(token, 0u, token == HALTED);
    if token == HALTED {
        batch.runs[run].length = 0u;
    }
}
