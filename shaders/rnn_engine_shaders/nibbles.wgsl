// Weights as numbers from 0 to 15. A u32 holds eight.

#include CODES

@group(0) @binding(2) var<storage, read> weights: array<u32>;

fn prepare_weights(thread: u32) {}

fn load_numbers(row: u32, eight: u32) -> Eight {
    return eight_nibbles(weights[eight_index(row, eight, BLOCK_EIGHTS)]);
}
