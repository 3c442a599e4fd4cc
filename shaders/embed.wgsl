// The embeddings of the step's tokens, normed: x[t] = LN(table[id of t]). One workgroup a token.
// A table that is larger than a binding is cut into parts; the dispatch of a part writes the tokens of its rows alone.

struct Part {
    first: u32,    // the token id of its first row
    num_rows: u32,
}

#include TABLE
#include batch
@group(0) @binding(0) var<storage, read> batch: Batch;
@group(0) @binding(1) var<storage, read> part: Part;
@group(0) @binding(2) var<storage, read> table: array<FourPacked>; // [num_rows, WIDTH / 4]
@group(0) @binding(3) var<storage, read> vectors: array<f32>;      // the norm's weight, then its bias
@group(0) @binding(4) var<storage, read_write> x: array<f32>;      // [T, WIDTH]

#include norm

const FOURS = WIDTH / 4u;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let token = group.x;
    let row = batch.tokens[token].id - part.first; // wraps to a large number for a row before the part
    if row < part.num_rows { // no return: a barrier after one never ends on Mesa's software device
        let start = token * WIDTH;
        for (var four = thread; four < FOURS; four += THREADS) {
            let values = unpack_four(table[row * FOURS + four]);
            let place = start + 4u * four;
            x[place] = values.x;
            x[place + 1u] = values.y;
            x[place + 2u] = values.z;
            x[place + 3u] = values.w;
        }
        storageBarrier();
        let stats = mean_and_scale(start, thread);
        for (var d = thread; d < WIDTH; d += THREADS) {
            x[start + d] = (x[start + d] - stats.x) * stats.y * vectors[d] + vectors[WIDTH + d];
        }
    }
}
