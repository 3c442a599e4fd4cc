// Products of tiles in signed bytes, one block of 32 columns at a time, so EIGHTS must be 4. The sums of a block are
// exact, and blocks are added in their order. So a sum is the same as that of products_int8.wgsl with one split.

#include eight
#include WEIGHTS
#include packed_inputs

const DEPTH = EIGHTS * 2u; // words of four columns in workgroup memory at once
const FIGURES = TILE_ROWS + TILE_TOKENS;
const FIGURE_ROUNDS = (FIGURES + THREADS - 1u) / THREADS;

var<workgroup> weights_tile: array<vec4<u32>, DEPTH * ROW_FOURS>;  // [DEPTH, rows]
var<workgroup> inputs_tile: array<vec4<u32>, DEPTH * TOKEN_FOURS>; // [DEPTH, tokens]
var<workgroup> row_scales: array<Scale, TILE_ROWS>;
var<workgroup> input_figures: array<vec2<f32>, TILE_TOKENS>;

// Four rows, or four tokens, of eight columns.
alias Lines = array<vec2<u32>, 4>;

fn load_lines(place: Place, number: u32, start: u32) -> Lines {
    var lines: Lines;
    let eight = start + number / LINES;
    let line = number % LINES;
    if number >= LOADS || start >= place.segment.num_eights {
        return lines;
    }
    for (var i = 0u; i < 4u; i++) {
        if line < ROW_FOURS {
            lines[i] = load_bytes(first_block(place, line * 4u + i), eight);
        } else {
            let first = start_of_inputs(place, (line - ROW_FOURS) * 4u + i) / 2u;
            lines[i] = inputs[first + start / INPUT_EIGHTS * BLOCK_PAIRS + eight % INPUT_EIGHTS];
        }
    }
    return lines;
}

fn keep_lines(lines: Lines, number: u32) {
    if number >= LOADS {
        return;
    }
    let line = number % LINES;
    let depth = number / LINES * 2u;
    for (var word = 0u; word < 2u; word++) {
        let four = vec4<u32>(lines[0][word], lines[1][word], lines[2][word], lines[3][word]);
        if line < ROW_FOURS {
            weights_tile[(depth + word) * ROW_FOURS + line] = four;
        } else {
            inputs_tile[(depth + word) * TOKEN_FOURS + line - ROW_FOURS] = four;
        }
    }
}

// Load and keep the scales of the rows' blocks and the figures of the tokens' blocks that begin at the eight `start`.
fn keep_figures(place: Place, thread: u32, start: u32) {
    for (var r = 0u; r < FIGURE_ROUNDS; r++) {
        let number = r * THREADS + thread;
        if number < TILE_ROWS {
            row_scales[number] = load_scale(first_block(place, number), start);
        } else if number < FIGURES {
            let token = number - TILE_ROWS;
            let block = start_of_inputs(place, token) / 2u + start / INPUT_EIGHTS * BLOCK_PAIRS;
            input_figures[token] = bitcast<vec2<f32>>(inputs[block + INPUT_EIGHTS]);
        }
    }
}

fn add_tiles(own: Own, sums: ptr<function, Sums>) {
    var block_sums: array<array<i32, EACH_ROWS>, EACH_TOKENS>;
    for (var depth = 0u; depth < DEPTH; depth++) {
        var rows: array<vec4<u32>, EACH_ROWS / 4u>;
        for (var r = 0u; r < EACH_ROWS / 4u; r++) {
            rows[r] = weights_tile[depth * ROW_FOURS + own.rows + r];
        }
        for (var four = 0u; four < EACH_TOKENS / 4u; four++) {
            let tokens = inputs_tile[depth * TOKEN_FOURS + own.tokens + four];
            for (var t = 0u; t < 4u; t++) {
                for (var r = 0u; r < EACH_ROWS; r++) {
                    block_sums[four * 4u + t][r] += dot4I8Packed(rows[r / 4u][r % 4u], tokens[t]);
                }
            }
        }
    }
    for (var r = 0u; r < EACH_ROWS; r++) {
        let scale = row_scales[own.rows * 4u + r];
        for (var t = 0u; t < EACH_TOKENS; t++) {
            let figures = input_figures[own.tokens * 4u + t];
            let sum = (*sums)[t][r / 4u][r % 4u];
            (*sums)[t][r / 4u][r % 4u] = add_block(scale, figures, f32(block_sums[t][r]), sum);
        }
    }
}

fn sum_products(place: Place, own: Own, sums: ptr<function, Sums>) {
    for (var start = 0u; start < place.segment.num_eights + EIGHTS; start += EIGHTS) {
        var loaded: array<Lines, ROUNDS>;
        for (var r = 0u; r < ROUNDS; r++) {
            loaded[r] = load_lines(place, r * THREADS + own.thread, start);
        }
        if start > 0u {
            add_tiles(own, sums);
            workgroupBarrier();
        }
        for (var r = 0u; r < ROUNDS; r++) {
            keep_lines(loaded[r], r * THREADS + own.thread);
        }
        if start < place.segment.num_eights {
            keep_figures(place, own.thread, start);
        }
        workgroupBarrier();
    }
}
