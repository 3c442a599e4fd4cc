// Matrices times up to TOKENS vectors, every weight read once.
// A workgroup is GROUPS groups of 8 * SPLITS threads. A group owns PANELS panels of 8 rows: one row a lane, and each
// of the SPLITS threads of a row takes every SPLITS-th eight of columns. Workgroups: (tiles, ceil(T / TOKENS)).

#include eight
#include WEIGHTS
#include batch
#include segments
#include INPUTS

const THREADS = GROUPS * PANEL * SPLITS;
const ROWS = GROUPS * PANELS * PANEL; // rows of a workgroup

var<workgroup> partial: array<f32, SPLITS * ROWS * TOKENS>;

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let segment = find_segment(workgroup.x * ROWS);
    let tile_row = workgroup.x * ROWS - segment.first_row;
    let lane = thread % PANEL;
    let split = (thread / PANEL) % SPLITS;
    let group = thread / (PANEL * SPLITS);
    let first_panel = tile_row / PANEL + group * PANELS;
    let first_token = workgroup.y * TOKENS;
    let start = segment.weights_start + first_panel * segment.panel_blocks + lane;
    let num_tokens = count_tokens();

    let own_token = min(first_token + lane % TOKENS, num_tokens - 1u);
    let own_input = (segment.inputs_start + own_token * segment.inputs_stride) / 4u;

    var sums: array<array<f32, TOKENS>, PANELS>;
    var first_input: array<u32, TOKENS>;
    for (var t = 0u; t < TOKENS; t++) {
        let token = min(first_token + t, num_tokens - 1u);
        first_input[t] = (segment.inputs_start + token * segment.inputs_stride) / 4u;
    }
    for (var eight = first_eight(split); eight < segment.num_eights; eight += SPLITS) {
        var panel: array<Eight, PANELS>;
        for (var p = 0u; p < PANELS; p++) {
            panel[p] = load_weights(start + p * segment.panel_blocks, eight);
        }
        share_inputs(own_input + eight * 2u);
        for (var t = 0u; t < TOKENS; t++) {
            let input = load_input(t, first_input[t] + eight * 2u, lane);
            for (var p = 0u; p < PANELS; p++) {
                sums[p][t] = multiply_add(panel[p], input, sums[p][t]);
            }
        }
    }

    if SPLITS == 1u {
        for (var p = 0u; p < PANELS; p++) {
            let row = (first_panel + p) * PANEL + lane;
            for (var t = 0u; t < TOKENS; t++) {
                if row < segment.num_rows && first_token + t < num_tokens {
                    store(segment, first_token + t, row, sums[p][t]);
                }
            }
        }
        return;
    }
    for (var p = 0u; p < PANELS; p++) {
        for (var t = 0u; t < TOKENS; t++) {
            let row = (group * PANELS + p) * PANEL + lane;
            partial[(split * TOKENS + t) * ROWS + row] = sums[p][t];
        }
    }
    workgroupBarrier();
    for (var place = thread; place < ROWS * TOKENS; place += THREADS) {
        var sum = 0.0;
        for (var s = 0u; s < SPLITS; s++) {
            sum += partial[s * ROWS * TOKENS + place];
        }
        let row = tile_row + place % ROWS;
        let token = first_token + place / ROWS;
        if row < segment.num_rows && token < num_tokens {
            store(segment, token, row, sum);
        }
    }
}
