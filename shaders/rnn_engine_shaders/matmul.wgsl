// Multiply matrices with up to TOKENS vectors, reading every weight once.
// A workgroup is GROUPS groups of 8 * SPLITS threads. A group owns PANELS panels of 8 rows, and a lane owns one row of
// each panel. Each of the SPLITS threads of a row takes a part of its columns. Workgroups: (tiles, ceil(T / TOKENS)).

#include batch_counts
#include segments

const THREADS = GROUPS * PANEL * SPLITS;
const ROWS = GROUPS * PANELS * PANEL; // rows of a workgroup

// The values that all threads of a workgroup share. Those of a single thread are in a struct of their own, since
// compilers demand that the bounds of loops with broadcasts and barriers are shared values.
struct Place {
    segment: Segment,
    first_token: u32,
    num_tokens: u32, // of the step
    workgroup: u32,  // its number among those of the same tokens
}

// The values of a single thread.
struct Own {
    start: u32, // number of the first block of its first row
    lane: u32,  // its row in each of its panels
    split: u32,
    thread: u32, // of the workgroup
}

// The sums of a thread's rows and tokens.
alias Sums = array<array<f32, TOKENS>, PANELS>;

// Return the index in `inputs`, in numbers of 4 bytes, of the first input of the workgroup's token `t`.
fn start_of_inputs(place: Place, t: u32) -> u32 {
    let token = min(place.first_token + t, place.num_tokens - 1u);
    return place.segment.inputs_start + token * place.segment.inputs_stride;
}

#include PRODUCTS

var<workgroup> split_sums: array<f32, SPLITS * ROWS * TOKENS>;

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    prepare_weights(thread);
    let segment = find_segment(workgroup.x * ROWS);
    let tile_row = workgroup.x * ROWS - segment.first_row;
    let lane = thread % PANEL;
    let split = (thread / PANEL) % SPLITS;
    let group = thread / (PANEL * SPLITS);
    let first_panel = tile_row / PANEL + group * PANELS;
    let first_token = workgroup.y * TOKENS;
    let start = segment.weights_start + first_panel * segment.panel_blocks + lane;
    let num_tokens = count_tokens();
    var sums: Sums;
    sum_products(Place(segment, first_token, num_tokens, workgroup.x), Own(start, lane, split, thread), &sums);

    if SPLITS == 1u && !PAIRED {
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
            split_sums[(split * TOKENS + t) * ROWS + row] = sums[p][t];
        }
    }
    workgroupBarrier();
    if ROWS * TOKENS <= THREADS { // no loop, whose body some compilers write twice
        if thread < ROWS * TOKENS {
            store_splits(segment, tile_row, first_token, num_tokens, thread);
        }
        return;
    }
    for (var place = thread; place < ROWS * TOKENS; place += THREADS) {
        store_splits(segment, tile_row, first_token, num_tokens, place);
    }
}

// Add up the sums of the splits at a place of the workgroup's tile.
fn add_splits(place: u32) -> f32 {
    var sum = 0.0;
    for (var s = 0u; s < SPLITS; s++) {
        sum += split_sums[s * ROWS * TOKENS + place];
    }
    return sum;
}

// Store the result of a place of the workgroup's tile. The rows of PAIRED matrices are a gate each and what it is for.
fn store_splits(segment: Segment, tile_row: u32, first_token: u32, num_tokens: u32, place: u32) {
    var row = tile_row + place % ROWS;
    let token = first_token + place / ROWS;
    if row >= segment.num_rows || token >= num_tokens || (PAIRED && row % 2u == 1u) {
        return;
    }
    var sum = add_splits(place);
    if PAIRED {
        sum *= sigmoid(sum) * add_splits(place + 1u);
        row /= 2u;
    }
    store(segment, token, row, sum);
}
