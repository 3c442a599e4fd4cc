// Add the gradient of a matmul's weights, times a scale, to what is there; the weights are f32 in panels:
//   gradient[r, c] += scale * sum over the tokens t of d_outputs[t, r] inputs[t, c]
// Rows from TRAINED_ROWS on and columns from TRAINED_COLUMNS on do not change.
// A thread owns eight columns of a row, and adds up the tokens in their order.
// Workgroups: (ceil(eights of columns / EIGHTS), panels of 8 rows), each of EIGHTS * PANEL threads.

#include batch_counts
#include eight
#include train_settings
#include segment_table

@group(0) @binding(2) var<storage, read> settings: TrainSettings;
@group(0) @binding(3) var<storage, read> inputs: array<vec4<f32>>;     // of the matmul
@group(0) @binding(4) var<storage, read> d_outputs: array<f32>;        // the gradients of its sums
@group(0) @binding(5) var<storage, read_write> gradient: array<vec4<f32>>;

@compute @workgroup_size(EIGHTS * PANEL)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let segment = find_segment(workgroup.y * PANEL);
    let row = workgroup.y * PANEL + thread % PANEL - segment.first_row;
    let eight = workgroup.x * EIGHTS + thread / PANEL;
    if row >= min(segment.num_rows, TRAINED_ROWS) || eight >= segment.num_eights {
        return;
    }
    var low = vec4<f32>(0.0);
    var high = vec4<f32>(0.0);
    var input = segment.inputs_start / 4u + 2u * eight;
    var output = segment.outputs_start + row;
    for (var t = 0u; t < count_tokens(); t++) {
        let slope = vec4<f32>(d_outputs[output]);
        low = fma(slope, inputs[input], low);
        high = fma(slope, inputs[input + 1u], high);
        input += segment.inputs_stride / 4u;
        output += segment.outputs_stride;
    }
    let block = segment.weights_start + row / PANEL * segment.panel_blocks + eight * PANEL + row % PANEL;
    let column = 8u * eight + vec4<u32>(0u, 1u, 2u, 3u);
    let end = vec4<u32>(TRAINED_COLUMNS);
    gradient[2u * block] += select(vec4<f32>(0.0), settings.scale * low, column < end);
    gradient[2u * block + 1u] += select(vec4<f32>(0.0), settings.scale * high, column + vec4<u32>(4u) < end);
}
