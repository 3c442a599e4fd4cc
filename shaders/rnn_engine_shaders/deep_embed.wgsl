// Multiply the inner vector of each token with its matrix [SIDE, SIDE]: scaled[t] = inner[t] (mix[t] + table[id of t]).
// The matrix is the sum of a part computed from the token's embedding and of the table's row for its id.
// One workgroup per token. The dispatch of a part of the table writes only the tokens whose rows are in that part.

#include eight
#include WEIGHTS
#include batch
#include table_part

@group(0) @binding(0) var<storage, read> batch: Batch;
@group(0) @binding(3) var<storage, read> hidden: array<f32>;        // from INNER on [T, SIDE], from MIX on [T, SIDE * SIDE]
@group(0) @binding(4) var<storage, read_write> scaled: array<f32>;  // [T, SIDE]

@compute @workgroup_size(SIDE)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    prepare_weights(thread);
    let token = group.x;
    let row = batch.tokens[token].id - part.first; // wraps to a large number for a row before the part
    if row >= part.num_rows {
        return;
    }
    let first_block = row / PANEL * part.panel_blocks + row % PANEL;
    var sum = 0.0;
    for (var i = 0u; i < SIDE; i++) {
        let column = i * SIDE + thread;
        let eight = load_weights(first_block, column / 8u);
        let own = select(eight.high[column % 4u], eight.low[column % 4u], column % 8u < 4u);
        sum += hidden[INNER + token * SIDE + i] * (hidden[MIX + token * SIDE * SIDE + column] + own);
    }
    scaled[token * SIDE + thread] = sum;
}
