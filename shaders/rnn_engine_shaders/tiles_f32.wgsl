// Products of tiles in f32, or in f16 with sums in f32: NUMBER chooses. Workgroup memory holds tiles by columns.

#include NUMBER
#include eight
#include WEIGHTS

@group(0) @binding(4) var<storage, read> inputs: array<vec4<f32>>;

const DEPTH = EIGHTS * 8u; // columns in workgroup memory at once

var<workgroup> weights_tile: array<vec4<Number>, DEPTH * ROW_FOURS>;  // [DEPTH, rows]
var<workgroup> inputs_tile: array<vec4<Number>, DEPTH * TOKEN_FOURS>; // [DEPTH, tokens]

// Four rows, or four tokens, of eight columns.
alias Block = array<Eight, 4>;

fn load_block(place: Place, number: u32, start: u32) -> Block {
    var block: Block;
    let eight = start + number / LINES;
    let line = number % LINES;
    if number >= LOADS || eight >= place.segment.num_eights {
        return block;
    }
    for (var i = 0u; i < 4u; i++) {
        if line < ROW_FOURS {
            block[i] = load_weights(first_block(place, line * 4u + i), eight);
        } else {
            let input = start_of_inputs(place, (line - ROW_FOURS) * 4u + i) / 4u + 2u * eight;
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

fn sum_products(place: Place, own: Own, sums: ptr<function, Sums>) {
    for (var start = 0u; start < place.segment.num_eights + EIGHTS; start += EIGHTS) {
        var blocks: array<Block, ROUNDS>;
        for (var r = 0u; r < ROUNDS; r++) {
            blocks[r] = load_block(place, r * THREADS + own.thread, start);
        }
        if start > 0u {
            for (var depth = 0u; depth < DEPTH; depth++) {
                var rows: array<vec4<Number>, EACH_ROWS / 4u>;
                for (var r = 0u; r < EACH_ROWS / 4u; r++) {
                    rows[r] = weights_tile[depth * ROW_FOURS + own.rows + r];
                }
                for (var four = 0u; four < EACH_TOKENS / 4u; four++) {
                    let tokens = inputs_tile[depth * TOKEN_FOURS + own.tokens + four];
                    for (var t = 0u; t < 4u; t++) {
                        for (var r = 0u; r < EACH_ROWS / 4u; r++) {
                            (*sums)[four * 4u + t][r] += vec4<f32>(rows[r] * tokens[t]);
                        }
                    }
                }
            }
            workgroupBarrier();
        }
        for (var r = 0u; r < ROUNDS; r++) {
            keep_block(blocks[r], r * THREADS + own.thread);
        }
        workgroupBarrier();
    }
}
