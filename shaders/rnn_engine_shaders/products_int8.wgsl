// Products of weights and inputs in signed bytes. The products of a block of 32 columns are summed exactly, and then
// scaled.
// A thread takes every SPLITS-th block as a whole. It loads UNROLL of its blocks before it multiplies the first of them:
// hardware waits once for all of these loads.

#include eight
#include WEIGHTS
#include packed_inputs
#include INPUTS

// The bytes of a block of a thread's rows.
alias BlockBytes = array<array<vec2<u32>, INPUT_EIGHTS>, PANELS>;

// Add the products of the blocks of UNROLL turns. The first begins at the eight `eight`.
fn add_blocks(place: Place, own: Own, first_input: array<u32, TOKENS>, eight: u32, sums: ptr<function, Sums>) {
    var blocks: array<BlockBytes, UNROLL>;
    var scales: array<array<Scale, PANELS>, UNROLL>;
    for (var u = 0u; u < UNROLL; u++) {
        let first = eight + u * SPLITS * INPUT_EIGHTS;
        for (var p = 0u; p < PANELS; p++) {
            let row = own.start + p * place.segment.panel_blocks;
            for (var e = 0u; e < INPUT_EIGHTS; e++) {
                blocks[u][p][e] = load_bytes(row, first + e);
            }
            scales[u][p] = load_scale(row, first);
        }
    }
    for (var u = 0u; u < UNROLL; u++) {
        let pairs = (eight / INPUT_EIGHTS + u * SPLITS) * BLOCK_PAIRS; // pairs before those of this block
        for (var t = 0u; t < TOKENS; t++) {
            var block_sums = array<i32, PANELS>();
            for (var e = 0u; e < INPUT_EIGHTS; e++) {
                let input = load_input(t, first_input[t] + pairs + e);
                for (var p = 0u; p < PANELS; p++) {
                    let bytes = blocks[u][p][e];
                    block_sums[p] += dot4I8Packed(bytes.x, input.x) + dot4I8Packed(bytes.y, input.y);
                }
            }
            let of_inputs = bitcast<vec2<f32>>(load_input(t, first_input[t] + pairs + INPUT_EIGHTS));
            for (var p = 0u; p < PANELS; p++) {
                (*sums)[p][t] = add_block(scales[u][p], of_inputs, f32(block_sums[p]), (*sums)[p][t]);
            }
        }
    }
}

fn sum_products(place: Place, own: Own, sums: ptr<function, Sums>) {
    var block_sums: array<array<i32, TOKENS>, PANELS>;
    var first_input: array<u32, TOKENS>;
    for (var t = 0u; t < TOKENS; t++) {
        first_input[t] = start_of_inputs(place, t) / 2u;
    }
    let own_input = start_of_inputs(place, own.lane % TOKENS) / 2u;
    let num_eights = (place.segment.num_eights + INPUT_EIGHTS - 1u) / INPUT_EIGHTS * INPUT_EIGHTS;
    var eight = first_block_taken(own.split) * INPUT_EIGHTS;
    if UNROLL > 1u {
        let turn = UNROLL * SPLITS * INPUT_EIGHTS;
        for (; eight + turn - SPLITS * INPUT_EIGHTS < num_eights; eight += turn) {
            add_blocks(place, own, first_input, eight, sums);
        }
    }
    while eight < num_eights {
        var panel: array<vec2<u32>, PANELS>;
        for (var p = 0u; p < PANELS; p++) {
            panel[p] = load_bytes(own.start + p * place.segment.panel_blocks, eight);
        }
        let pairs = eight / INPUT_EIGHTS * BLOCK_PAIRS; // pairs before those of this block
        let pair = pairs + eight % INPUT_EIGHTS;
        share_inputs(own_input + pair);
        for (var t = 0u; t < TOKENS; t++) {
            let input = load_input(t, first_input[t] + pair);
            for (var p = 0u; p < PANELS; p++) {
                block_sums[p][t] += dot4I8Packed(panel[p].x, input.x) + dot4I8Packed(panel[p].y, input.y);
            }
        }
        if eight % INPUT_EIGHTS == INPUT_EIGHTS - 1u {
            let figures = pairs + INPUT_EIGHTS;
            share_inputs(own_input + figures);
            for (var p = 0u; p < PANELS; p++) {
                let scale = load_scale(own.start + p * place.segment.panel_blocks, eight);
                for (var t = 0u; t < TOKENS; t++) {
                    let of_inputs = bitcast<vec2<f32>>(load_input(t, first_input[t] + figures));
                    (*sums)[p][t] = add_block(scale, of_inputs, f32(block_sums[p][t]), (*sums)[p][t]);
                    block_sums[p][t] = 0;
                }
            }
            eight += (SPLITS - 1u) * INPUT_EIGHTS;
        }
        eight += 1u;
    }
}
