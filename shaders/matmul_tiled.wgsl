// Matrices times many vectors: TILE rows by TILE tokens a workgroup, four by four a thread, through workgroup memory.
// Workgroups: (tiles, ceil(T / TILE)).

#include eight
#include WEIGHTS
#include batch
#include segments

const TILE = 64u;
const EIGHTS = 2u;              // eights of columns in workgroup memory at once
const DEPTH = EIGHTS * 8u;
const LOADERS = TILE * EIGHTS;  // threads that load weights; as many load inputs
const EACH = 4u;                // rows, and tokens, of a thread
const SIDE = TILE / EACH;

var<workgroup> weights_tile: array<f32, DEPTH * TILE>; // [DEPTH, rows]
var<workgroup> inputs_tile: array<f32, DEPTH * TILE>;  // [DEPTH, tokens]

@compute @workgroup_size(SIDE * SIDE)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let segment = find_segment(workgroup.x * TILE);
    let num_tokens = count_tokens();
    let first_row = workgroup.x * TILE - segment.first_row;
    let first_token = workgroup.y * TILE;

    let loader = thread % LOADERS;
    let loads_weights = thread < LOADERS;
    let line = loader % TILE;         // the row, or the token, that this thread loads
    let eight_in_tile = loader / TILE;
    let first_block = segment.weights_start + (first_row + line) / PANEL * segment.panel_blocks + line % PANEL;
    let loaded_token = min(first_token + line, num_tokens - 1u);
    let first_input = (segment.inputs_start + loaded_token * segment.inputs_stride) / 4u;

    let own_row = (thread % SIDE) * EACH;
    let own_token = (thread / SIDE) * EACH;
    var sums: array<vec4<f32>, EACH>; // [tokens] of rows
    for (var start = 0u; start < segment.num_eights; start += EIGHTS) {
        let eight = start + eight_in_tile;
        var low = vec4<f32>(0.0);
        var high = vec4<f32>(0.0);
        if eight < segment.num_eights {
            if loads_weights {
                let loaded = load_weights(first_block, eight);
                low = loaded.low;
                high = loaded.high;
            } else {
                low = inputs[first_input + 2u * eight];
                high = inputs[first_input + 2u * eight + 1u];
            }
        }
        workgroupBarrier();
        for (var column = 0u; column < 4u; column++) {
            let place = (eight_in_tile * 8u + column) * TILE + line;
            if loads_weights {
                weights_tile[place] = low[column];
                weights_tile[place + 4u * TILE] = high[column];
            } else {
                inputs_tile[place] = low[column];
                inputs_tile[place + 4u * TILE] = high[column];
            }
        }
        workgroupBarrier();
        for (var depth = 0u; depth < DEPTH; depth++) {
            let row = depth * TILE + own_row;
            let token = depth * TILE + own_token;
            let rows = vec4<f32>(weights_tile[row], weights_tile[row + 1u], weights_tile[row + 2u], weights_tile[row + 3u]);
            for (var t = 0u; t < EACH; t++) {
                sums[t] += rows * inputs_tile[token + t];
            }
        }
    }
    for (var t = 0u; t < EACH; t++) {
        for (var r = 0u; r < EACH; r++) {
            let row = first_row + own_row + r;
            let token = first_token + own_token + t;
            if row < segment.num_rows && token < num_tokens {
                store(segment, token, row, sums[t][r]);
            }
        }
    }
}
