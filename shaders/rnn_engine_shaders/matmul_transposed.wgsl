// Multiply the transposes of matrices with up to TOKENS vectors, the gradients of the matrices' outputs, and read every
// weight once: dx[c] = sum over rows r of W[r, c] dy[r]. The weights lie in the panels of segments.wgsl.
// A thread owns eight columns. Workgroups: (ceil(T / TOKENS), tiles of THREADS eights of columns); so those that run at
// about the same time read the same weights, of which one tile fits into a cache.
// Matrices that have read the same inputs add to one gradient, a target. Each of them, or the part of it that lies in
// the bound weights, is a source.

#include batch_counts
#include eight
#include WEIGHTS
#include INPUTS

struct Target {
    first_eight: u32, // its first eight of columns among those of all targets, a multiple of THREADS
    num_columns: u32, // columns without padding
    start: u32,       // index of the first token's first column in `gradients` and in `activations`
    stride: u32,      // floats from one token to the next
    inputs_from: u32, // the activation that made the matrices' inputs
    is_added: u32,    // 1 to add to what `gradients` holds
    first_source: u32,
    num_sources: u32,
}

struct Source {
    num_panels: u32,
    panel_blocks: u32,  // blocks of a panel
    weights_start: u32, // number of its first block
    inputs_start: u32,  // index of the first token's first row in `inputs`, in floats; a multiple of 4
    inputs_stride: u32, // floats from one token to the next, a multiple of 4
}

struct Transposed {
    counts_rows: u32, // 1 to multiply with a step's rows, 0 to multiply with its tokens
    num_targets: u32,
    targets: array<Target, MAX_SEGMENTS>,
    sources: array<Source, MAX_SEGMENTS>,
}

@group(0) @binding(0) var<storage, read> batch: Batch;
@group(0) @binding(1) var<storage, read> matmul: Transposed;
@group(0) @binding(3) var<storage, read> activations: array<f32>;     // the matrices' inputs on the way forward
@group(0) @binding(4) var<storage, read> inputs: array<vec4<f32>>;    // the gradients of the outputs
@group(0) @binding(5) var<storage, read_write> gradients: array<f32>; // of the inputs

fn find_target(eight: u32) -> Target {
    var index = matmul.num_targets - 1u;
    while matmul.targets[index].first_eight > eight {
        index -= 1u;
    }
    return matmul.targets[index];
}

// Return the factor by which an activation's gradient grows from its output to its argument, given the output.
fn slope(activation: u32, output: f32) -> f32 {
    switch activation {
        case ACTIVATION_TANH: { return 1.0 - output * output; }
        case ACTIVATION_SIGMOID: { return output * (1.0 - output); }
        case ACTIVATION_SQUARED_RELU: { return 2.0 * sqrt(output); }
        case ACTIVATION_SCALED: { return SCALE; }
        default: { return 1.0; }
    }
}

fn add_row(row: Eight, input: f32, sum: Eight) -> Eight {
    return Eight(fma(row.low, vec4<f32>(input), sum.low), fma(row.high, vec4<f32>(input), sum.high));
}

// Add the products of eight rows with eight numbers to a sum.
fn add_rows(rows: array<Eight, PANEL>, inputs: Eight, sum: Eight) -> Eight {
    let two = add_row(rows[1], inputs.low.y, add_row(rows[0], inputs.low.x, sum));
    let four = add_row(rows[3], inputs.low.w, add_row(rows[2], inputs.low.z, two));
    let six = add_row(rows[5], inputs.high.y, add_row(rows[4], inputs.high.x, four));
    return add_row(rows[7], inputs.high.w, add_row(rows[6], inputs.high.z, six));
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    prepare_weights(thread);
    let own = find_target(workgroup.y * THREADS);
    let own_eight = workgroup.y * THREADS - own.first_eight + thread;
    let eight = min(own_eight, (own.num_columns - 1u) / 8u);
    let num_tokens = select(batch.num_tokens, batch.num_rows, matmul.counts_rows == 1u);
    let first_token = workgroup.x * TOKENS;
    let lane = thread % PANEL;
    var sums: array<Eight, TOKENS>;
    for (var s = own.first_source; s < own.first_source + own.num_sources; s++) {
        let source = matmul.sources[s];
        var first_input: array<u32, TOKENS>;
        for (var t = 0u; t < TOKENS; t++) {
            first_input[t] = (source.inputs_start + min(first_token + t, num_tokens - 1u) * source.inputs_stride) / 4u;
        }
        let own_token = min(first_token + lane % TOKENS, num_tokens - 1u);
        let own_input = (source.inputs_start + own_token * source.inputs_stride) / 4u;
        for (var panel = first_eight(0u); panel < source.num_panels; panel++) {
            let block = source.weights_start + panel * source.panel_blocks;
            var rows: array<Eight, PANEL>;
            for (var r = 0u; r < PANEL; r++) {
                rows[r] = load_weights(block + r, eight);
            }
            share_inputs(own_input + panel * 2u);
            for (var t = 0u; t < TOKENS; t++) {
                let input = load_input(t, first_input[t] + panel * 2u, lane);
                sums[t] = add_rows(rows, input, sums[t]);
            }
        }
    }
    for (var t = 0u; t < TOKENS; t++) {
        for (var c = 0u; c < 8u; c++) {
            let column = 8u * own_eight + c;
            if column < own.num_columns && first_token + t < num_tokens {
                let place = own.start + (first_token + t) * own.stride + column;
                var sum = select(sums[t].high[c % 4u], sums[t].low[c % 4u], c < 4u);
                if own.inputs_from != 0u {
                    sum *= slope(own.inputs_from, activations[place]);
                }
                gradients[place] = select(0.0, gradients[place], own.is_added == 1u) + sum;
            }
        }
    }
}
