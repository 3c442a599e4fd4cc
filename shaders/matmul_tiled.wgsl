// Matrices times many vectors: TILE_ROWS by TILE_TOKENS a workgroup through workgroup memory, EACH_ROWS by EACH_TOKENS
// a thread in registers. The next columns are loaded while those in workgroup memory are multiplied.
// Workgroups: (tiles, ceil(T / TILE_TOKENS)). Numbers in workgroup memory, and products, are of the type NUMBER.

#include NUMBER
#include eight
#include WEIGHTS
#include batch
#include segments

const DEPTH = EIGHTS * 8u;            // columns in workgroup memory at once
const ROW_FOURS = TILE_ROWS / 4u;
const TOKEN_FOURS = TILE_TOKENS / 4u;
const SIDE_ROWS = TILE_ROWS / EACH_ROWS; // threads along the rows of a tile
const SIDE_TOKENS = TILE_TOKENS / EACH_TOKENS;
const THREADS = SIDE_ROWS * SIDE_TOKENS;
const LINES = ROW_FOURS + TOKEN_FOURS; // fours of rows and of tokens, of which eight columns are loaded at once
const LOADS = LINES * EIGHTS;
const ROUNDS = (LOADS + THREADS - 1u) / THREADS; // loads of a thread

var<workgroup> weights_tile: array<vec4<Number>, DEPTH * ROW_FOURS>;  // [DEPTH, rows]
var<workgroup> inputs_tile: array<vec4<Number>, DEPTH * TOKEN_FOURS>; // [DEPTH, tokens]
var<workgroup> finished: array<f32, TILE_ROWS * SIDE_TOKENS>;         // [tokens, rows]

// Four rows, or four tokens, of eight columns.
alias Block = array<Eight, 4>;

struct Place {
    segment: Segment,
    first_row: u32, // of the tile, in the segment
    first_token: u32,
    num_tokens: u32, // of the step
}

fn load_block(place: Place, number: u32, start: u32) -> Block {
    var block: Block;
    let eight = start + number / LINES;
    let line = number % LINES;
    if number >= LOADS || eight >= place.segment.num_eights {
        return block;
    }
    for (var i = 0u; i < 4u; i++) {
        if line < ROW_FOURS {
            let row = place.first_row + line * 4u + i;
            let first_block = row / PANEL * place.segment.panel_blocks + row % PANEL;
            block[i] = load_weights(place.segment.weights_start + first_block, eight);
        } else {
            let token = min(place.first_token + (line - ROW_FOURS) * 4u + i, place.num_tokens - 1u);
            let input = (place.segment.inputs_start + token * place.segment.inputs_stride) / 4u + 2u * eight;
            block[i] = Eight(inputs[input], inputs[input + 1u]);
        }
    }
    return block;
}

fn keep_block(block: Block, number: u32) {
    if number >= LOADS {
        return;
    }
    let line = number % LINES;
    let depth = number / LINES * 8u;
    for (var column = 0u; column < 4u; column++) {
        let low = to_numbers(vec4<f32>(block[0].low[column], block[1].low[column], block[2].low[column], block[3].low[column]));
        let high = to_numbers(vec4<f32>(block[0].high[column], block[1].high[column], block[2].high[column], block[3].high[column]));
        if line < ROW_FOURS {
            weights_tile[(depth + column) * ROW_FOURS + line] = low;
            weights_tile[(depth + column + 4u) * ROW_FOURS + line] = high;
        } else {
            inputs_tile[(depth + column) * TOKEN_FOURS + line - ROW_FOURS] = low;
            inputs_tile[(depth + column + 4u) * TOKEN_FOURS + line - ROW_FOURS] = high;
        }
    }
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let segment = find_segment(workgroup.x * TILE_ROWS);
    let place = Place(segment, workgroup.x * TILE_ROWS - segment.first_row, workgroup.y * TILE_TOKENS, count_tokens());
    let own_rows = thread % SIDE_ROWS * (EACH_ROWS / 4u);     // in fours
    let own_tokens = thread / SIDE_ROWS * (EACH_TOKENS / 4u);

    var sums: array<array<vec4<f32>, EACH_ROWS / 4u>, EACH_TOKENS>;
    for (var start = 0u; start < segment.num_eights + EIGHTS; start += EIGHTS) {
        var blocks: array<Block, ROUNDS>;
        for (var r = 0u; r < ROUNDS; r++) {
            blocks[r] = load_block(place, r * THREADS + thread, start);
        }
        if start > 0u {
            for (var depth = 0u; depth < DEPTH; depth++) {
                var rows: array<vec4<Number>, EACH_ROWS / 4u>;
                for (var r = 0u; r < EACH_ROWS / 4u; r++) {
                    rows[r] = weights_tile[depth * ROW_FOURS + own_rows + r];
                }
                for (var four = 0u; four < EACH_TOKENS / 4u; four++) {
                    let tokens = inputs_tile[depth * TOKEN_FOURS + own_tokens + four];
                    for (var t = 0u; t < 4u; t++) {
                        for (var r = 0u; r < EACH_ROWS / 4u; r++) {
                            sums[four * 4u + t][r] += vec4<f32>(rows[r] * tokens[t]);
                        }
                    }
                }
            }
            workgroupBarrier();
        }
        for (var r = 0u; r < ROUNDS; r++) {
            keep_block(blocks[r], r * THREADS + thread);
        }
        workgroupBarrier();
    }

    // A slice of every thread's tokens at a time: neighbouring threads then write neighbouring rows, and what stores a
    // sum is compiled for each slice and not for each sum.
    for (var t = 0u; t < EACH_TOKENS; t++) {
        workgroupBarrier();
        for (var r = 0u; r < EACH_ROWS; r++) {
            finished[thread / SIDE_ROWS * TILE_ROWS + own_rows * 4u + r] = sums[t][r / 4u][r % 4u];
        }
        workgroupBarrier();
        for (var i = thread; i < TILE_ROWS * SIDE_TOKENS; i += THREADS) {
            let row = place.first_row + i % TILE_ROWS;
            let token = place.first_token + i / TILE_ROWS * EACH_TOKENS + t;
            if row < segment.num_rows && token < place.num_tokens {
                store(segment, token, row, finished[i]);
            }
        }
    }
}
