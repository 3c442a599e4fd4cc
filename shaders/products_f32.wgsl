// Products of weights and inputs in f32, eight columns at a time.

#include eight
#include WEIGHTS
#include INPUTS

@group(0) @binding(4) var<storage, read> inputs: array<vec4<f32>>;

fn sum_products(place: Place, own: Own, sums: ptr<function, Sums>) {
    var first_input: array<u32, TOKENS>;
    for (var t = 0u; t < TOKENS; t++) {
        first_input[t] = start_of_inputs(place, t) / 4u;
    }
    let own_input = start_of_inputs(place, own.lane % TOKENS) / 4u;
    for (var eight = first_eight(own.split); eight < place.segment.num_eights; eight += SPLITS) {
        var panel: array<Eight, PANELS>;
        for (var p = 0u; p < PANELS; p++) {
            panel[p] = load_weights(own.start + p * place.segment.panel_blocks, eight);
        }
        share_inputs(own_input + eight * 2u);
        for (var t = 0u; t < TOKENS; t++) {
            let input = load_input(t, first_input[t] + eight * 2u, own.lane);
            for (var p = 0u; p < PANELS; p++) {
                (*sums)[p][t] = multiply_add(panel[p], input, (*sums)[p][t]);
            }
        }
    }
}
