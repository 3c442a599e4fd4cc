// Products of weights and inputs in f32, eight columns at a time. A thread loads the weights of UNROLL eights before it
// multiplies the first of them: hardware computes little while it waits for memory, and waits once for all of them.

#include eight
#include WEIGHTS
#include INPUTS
#include stored_inputs
#include one_format

alias Panel = array<Eight, PANELS>;

fn load_panel(place: Place, own: Own, in_floats: bool, eight: u32) -> Panel {
    var panel: Panel;
    for (var p = 0u; p < PANELS; p++) {
        panel[p] = load_any_weights(in_floats, own.start + p * place.segment.panel_blocks, eight);
    }
    return panel;
}

fn add_products(place: Place, own: Own, panel: Panel, first_input: array<u32, TOKENS>, own_input: u32, eight: u32, sums: ptr<function, Sums>) {
    share_inputs(own_input + eight * 2u);
    for (var t = 0u; t < TOKENS; t++) {
        let input = load_input(t, first_input[t] + eight * 2u, own.lane);
        for (var p = 0u; p < PANELS; p++) {
            (*sums)[p][t] = multiply_add(panel[p], input, (*sums)[p][t]);
        }
    }
}

fn sum_products(place: Place, own: Own, sums: ptr<function, Sums>) {
    sum_rows(prepare_inputs(place, own), own, sums);
}

fn sum_columns(place: Place, own: Own, in_floats: bool, sums: ptr<function, Sums>) {
    var first_input: array<u32, TOKENS>;
    for (var t = 0u; t < TOKENS; t++) {
        first_input[t] = start_of_inputs(place, t) / 4u;
    }
    let own_input = start_of_inputs(place, own.lane % TOKENS) / 4u;
    var eight = first_eight(own.split);
    if UNROLL > 1u {
        for (; eight + (UNROLL - 1u) * SPLITS < place.segment.num_eights; eight += UNROLL * SPLITS) {
            var panels: array<Panel, UNROLL>;
            for (var u = 0u; u < UNROLL; u++) {
                panels[u] = load_panel(place, own, in_floats, eight + u * SPLITS);
            }
            for (var u = 0u; u < UNROLL; u++) {
                add_products(place, own, panels[u], first_input, own_input, eight + u * SPLITS, sums);
            }
        }
    }
    for (; eight < place.segment.num_eights; eight += SPLITS) {
        add_products(place, own, load_panel(place, own, in_floats, eight), first_input, own_input, eight, sums);
    }
}
