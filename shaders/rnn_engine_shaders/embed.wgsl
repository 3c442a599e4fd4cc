// Look up the embeddings of the step's tokens, and if NORMS, apply a norm to them: x[t] = norm(table[id of t]).
// One workgroup per token. The dispatch of a part of the table writes only the tokens whose rows are in that part.

#include eight
#include WEIGHTS
#include batch
#include table_part

@group(0) @binding(0) var<storage, read> batch: Batch;
@group(0) @binding(3) var<storage, read> vectors: array<f32>;  // the norm's weight, then its bias
@group(0) @binding(4) var<storage, read_write> x: array<f32>;  // [T, WIDTH]

#include norm

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    prepare_weights(thread);
    let token = group.x;
    let row = batch.tokens[token].id - part.first; // wraps to a large number for a row before the part
    if row < part.num_rows { // no early return: a barrier after one never ends on Mesa's software device
        let start = token * WIDTH;
        let first_block = row / PANEL * part.panel_blocks + row % PANEL;
        for (var eight = thread; 8u * eight < WIDTH; eight += THREADS) {
            let values = load_weights(first_block, eight);
            for (var column = 0u; column < min(8u, WIDTH - 8u * eight); column++) {
                x[start + 8u * eight + column] = select(values.high[column % 4u], values.low[column % 4u], column < 4u);
            }
        }
        if NORMS {
            storageBarrier();
            let stats = mean_and_scale(start, thread);
            for (var d = thread; d < WIDTH; d += THREADS) {
                x[start + d] = (x[start + d] - stats.x) * stats.y * vectors[d] + bias_of_norm(WIDTH + d);
            }
        }
    }
}
