// Products of weights in blocks and inputs in f32 by threads that own whole rows (SPLITS is 1). The figures of a block are
// loaded once, and the numbers of a part are summed before they are scaled:
// sum of (scale n + offset) x = scale (sum of n x) + offset (sum of x).

#include eight
#include WEIGHTS
#include INPUTS
#include stored_inputs

struct PartSums {
    products: Sums,
    inputs: array<f32, TOKENS>,
}

fn add_part(place: Place, own: Own, first_input: array<u32, TOKENS>, own_input: u32, first_eight: u32) -> PartSums {
    var sums: PartSums;
    for (var e = 0u; e < PART_EIGHTS; e++) { // a count that compilers know, so that they unroll the loop
        let eight = first_eight + e;
        var panel: array<Eight, PANELS>;
        for (var p = 0u; p < PANELS; p++) {
            panel[p] = load_numbers(own.start + p * place.segment.panel_blocks, eight);
        }
        share_inputs(own_input + eight * 2u);
        for (var t = 0u; t < TOKENS; t++) {
            let input = load_input(t, first_input[t] + eight * 2u, own.lane);
            sums.inputs[t] += sum_of(input);
            for (var p = 0u; p < PANELS; p++) {
                sums.products[p][t] = multiply_add(panel[p], input, sums.products[p][t]);
            }
        }
    }
    return sums;
}

fn sum_products(place: Place, own: Own, sums: ptr<function, Sums>) {
    var first_input: array<u32, TOKENS>;
    for (var t = 0u; t < TOKENS; t++) {
        first_input[t] = start_of_inputs(place, t) / 4u;
    }
    let own_input = start_of_inputs(place, own.lane % TOKENS) / 4u;
    var eight = first_eight(0u);
    for (; eight + BLOCK_EIGHTS <= place.segment.num_eights; eight += BLOCK_EIGHTS) {
        var figures: array<Figures, PANELS>;
        for (var p = 0u; p < PANELS; p++) {
            figures[p] = load_figures(own.start + p * place.segment.panel_blocks, eight);
        }
        for (var number = 0u; number < BLOCK_PARTS; number++) {
            let part = add_part(place, own, first_input, own_input, eight + number * PART_EIGHTS);
            for (var p = 0u; p < PANELS; p++) {
                let of_part = figures_of(figures[p], number);
                for (var t = 0u; t < TOKENS; t++) {
                    (*sums)[p][t] = fma(of_part.x, part.products[p][t], fma(of_part.y, part.inputs[t], (*sums)[p][t]));
                }
            }
        }
    }
    for (; eight < place.segment.num_eights; eight++) { // of a block that the matrix does not fill
        share_inputs(own_input + eight * 2u);
        for (var t = 0u; t < TOKENS; t++) {
            let input = load_input(t, first_input[t] + eight * 2u, own.lane);
            for (var p = 0u; p < PANELS; p++) {
                let weights = load_weights(own.start + p * place.segment.panel_blocks, eight);
                (*sums)[p][t] = multiply_add(weights, input, (*sums)[p][t]);
            }
        }
    }
}
