// A matmul multiplies one or more matrices, each with its own inputs, in one dispatch.
// Each matrix, or the part of it that fits a binding, is a segment. Its rows are stored in panels of 8 rows, and a
// panel in blocks of B columns, as its weight format defines: [rows / 8][columns / B][8 rows][B columns], both rounded
// up. So threads that own neighbouring rows read neighbouring memory, and all kernels read whole lines of memory.
// A kernel loads 8 columns at once. It loads none beyond the last 8 of the matrix: the inputs after these are another
// token's, and an infinite input would give NaN even if it is multiplied by zero.

#include segment_table
#include activations

@group(0) @binding(3) var<storage, read> vectors: array<f32>; // operands
@group(0) @binding(5) var<storage, read_write> outputs: array<f32>;

// Apply the activation to a finished sum and store it. The clamp avoids NaN: some drivers return it for tanh of a large
// argument.
fn store(segment: Segment, token: u32, row: u32, sum: f32) {
    let place = segment.outputs_start + token * segment.outputs_stride + row;
    let operand = segment.operand_start + token * segment.operand_stride + row;
    switch segment.activation {
        case ACTIVATION_TANH: { outputs[place] = tanh(clamp(sum, -20.0, 20.0)); }
        case ACTIVATION_SIGMOID: { outputs[place] = sigmoid(sum); }
        case ACTIVATION_SQUARED_RELU: { let positive = max(sum, 0.0); outputs[place] = positive * positive; }
        case ACTIVATION_BIASED_SIGMOID: { outputs[place] = sigmoid(sum + vectors[operand]); }
        case ACTIVATION_DECAY: { outputs[place] = decay(sum + vectors[operand]); }
        case ACTIVATION_RESIDUAL: { outputs[place] += sum; }
        case ACTIVATION_DOUBLE_EXP_DECAY: { outputs[place] = exp(-exp(sum + vectors[operand])); }
        case ACTIVATION_SCALED_RESIDUAL: { outputs[place] += sum * vectors[operand]; }
        case ACTIVATION_SHIFTED_MIX: { outputs[place] += sum * outputs[operand]; }
        case ACTIVATION_BIASED: { outputs[place] = sum + vectors[operand]; }
        case ACTIVATION_SILU: { outputs[place] = sum * sigmoid(sum); }
        case ACTIVATION_PRODUCT: { outputs[place] *= sum; }
        case ACTIVATION_BIASED_SCALE: { outputs[place] *= sum + vectors[operand]; }
        case ACTIVATION_SCALED: { outputs[place] = sum * vectors[operand]; }
        case ACTIVATION_ADDED_SQUARED_RELU: {
            let positive = max(outputs[place] + sum, 0.0);
            outputs[place] = positive * positive;
        }
        case ACTIVATION_ADDED_SIGMOID: { outputs[place] = sigmoid(outputs[place] + sum); }
        case ACTIVATION_ADDED_SILU: { let whole = outputs[place] + sum; outputs[place] = whole * sigmoid(whole); }
        default: { outputs[place] = sum; }
    }
}
