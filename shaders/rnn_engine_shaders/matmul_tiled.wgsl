// Multiply matrices with many vectors. A workgroup computes TILE_ROWS by TILE_TOKENS sums from workgroup memory, and
// each of its threads computes EACH_ROWS by EACH_TOKENS of these in registers. The next columns are loaded while those
// in workgroup memory are multiplied. Workgroups: (tiles, ceil(T / TILE_TOKENS)).

#include batch_counts
#include segments

const ROW_FOURS = TILE_ROWS / 4u;
const TOKEN_FOURS = TILE_TOKENS / 4u;
const SIDE_ROWS = TILE_ROWS / EACH_ROWS; // threads along the rows of a tile
const SIDE_TOKENS = TILE_TOKENS / EACH_TOKENS;
const THREADS = SIDE_ROWS * SIDE_TOKENS;
const LINES = ROW_FOURS + TOKEN_FOURS; // fours of rows and of tokens; eight columns of a four are loaded at once
const LOADS = LINES * EIGHTS;
const ROUNDS = (LOADS + THREADS - 1u) / THREADS; // loads of a thread

var<workgroup> finished: array<f32, TILE_ROWS * SIDE_TOKENS>; // [tokens, rows]

// The values that all threads of a workgroup share: see matmul.wgsl.
struct Place {
    segment: Segment,
    first_row: u32, // of the tile, in the segment
    first_token: u32,
    num_tokens: u32, // of the step
}

// The values of a single thread: its number, and its first row and token in fours from the tile's.
struct Own {
    thread: u32,
    rows: u32,
    tokens: u32,
}

// The sums of a thread's tokens and rows.
alias Sums = array<array<vec4<f32>, EACH_ROWS / 4u>, EACH_TOKENS>;

// Return the number of the first block of a row of the tile.
fn first_block(place: Place, row_of_tile: u32) -> u32 {
    let row = place.first_row + row_of_tile;
    return place.segment.weights_start + row / PANEL * place.segment.panel_blocks + row % PANEL;
}

// Return the index in `inputs`, in numbers of 4 bytes, of the first input of a token of the tile.
fn start_of_inputs(place: Place, token_of_tile: u32) -> u32 {
    let token = min(place.first_token + token_of_tile, place.num_tokens - 1u);
    return place.segment.inputs_start + token * place.segment.inputs_stride;
}

#include PRODUCTS

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    prepare_weights(thread);
    let segment = find_segment(workgroup.x * TILE_ROWS);
    let own_rows = thread % SIDE_ROWS * (EACH_ROWS / 4u);
    let own_tokens = thread / SIDE_ROWS * (EACH_TOKENS / 4u);
    let first_row = workgroup.x * TILE_ROWS - segment.first_row;
    let place = Place(segment, first_row, workgroup.y * TILE_TOKENS, count_tokens());
    var sums: Sums;
    sum_products(place, Own(thread, own_rows, own_tokens), &sums);

    // Store one token of every thread at a time. So neighbouring threads write neighbouring rows, and the code that
    // stores a sum is compiled once for each of a thread's tokens, not for each sum.
    for (var t = 0u; t < EACH_TOKENS; t++) {
        workgroupBarrier();
        for (var r = 0u; r < EACH_ROWS; r++) {
            finished[thread / SIDE_ROWS * TILE_ROWS + own_rows * 4u + r] = sums[t][r / 4u][r % 4u];
        }
        workgroupBarrier();
        for (var i = thread; i < TILE_ROWS * SIDE_TOKENS; i += THREADS) {
            var row = place.first_row + i % TILE_ROWS;
            let token = place.first_token + i / TILE_ROWS * EACH_TOKENS + t;
            if row >= segment.num_rows || token >= place.num_tokens || (PAIRED && row % 2u == 1u) {
                continue;
            }
            var sum = finished[i];
            if PAIRED {
                sum *= sigmoid(sum) * finished[i + 1u];
                row /= 2u;
            }
            store(segment, token, row, sum);
        }
    }
}
