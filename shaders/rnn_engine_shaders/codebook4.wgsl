// Weights as indices of LEVELS, whose numbers are multiplied by the scale of their block. A u32 holds eight indices.

#include CODES

@group(0) @binding(2) var<storage, read> weights: array<u32>;

fn load_numbers(row: u32, eight: u32) -> Eight {
    return eight_levels(weights[eight_index(row, eight, BLOCK_EIGHTS)]);
}
