// The table of the segments of a matmul, see segments.wgsl, and of the places of their weights, inputs and outputs.

struct Segment {
    first_row: u32,     // its first row among the rows of all segments, a multiple of 64
    num_rows: u32,      // rows without padding; the next segment starts at the next multiple of 64
    num_eights: u32,    // eights of columns, rounded up
    panel_blocks: u32,  // blocks of a panel
    weights_start: u32, // number of its first block
    inputs_start: u32,  // index of the first token's first input in `inputs`, in numbers of 4 bytes
    inputs_stride: u32, // numbers of 4 bytes from one token's inputs to the next
    outputs_start: u32, // index of the first token's first output in `outputs`
    outputs_stride: u32,
    operand_start: u32, // index of the operand, such as a bias, of the first row of the first token
    operand_stride: u32, // floats from one token's operands to the next; 0 if all tokens share them
    activation: u32,
}

struct MatMul {
    counts_rows: u32, // 1 to multiply with a step's rows, 0 to multiply with its tokens
    num_segments: u32,
    segments: array<Segment, MAX_SEGMENTS>,
}

@group(0) @binding(0) var<storage, read> batch: Batch;
@group(0) @binding(1) var<storage, read> matmul: MatMul;

fn find_segment(row: u32) -> Segment {
    var index = matmul.num_segments - 1u;
    while matmul.segments[index].first_row > row {
        index -= 1u;
    }
    return matmul.segments[index];
}

fn count_tokens() -> u32 {
    return select(batch.num_tokens, batch.num_rows, matmul.counts_rows == 1u);
}
