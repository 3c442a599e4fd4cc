// Weights as numbers whose bits lie apart: the upper ones of several numbers share a word.

#include CODES

@group(0) @binding(2) var<storage, read> weights: array<u32>;

fn prepare_weights(thread: u32) {}

// Return the bits 0, 2, 4 and 6 as a byte each. The product has each of them where it is wanted, and other sums
// elsewhere.
fn bytes_of_bits(bits: u32) -> u32 {
    return ((bits & 0x55u) * 0x41041u) & 0x01010101u;
}

// Return the two bits from each of the bits 0, 4, 8 and 12 on as a byte each.
fn bytes_of_pairs(bits: u32) -> u32 {
    let halves = (bits | (bits << 8u)) & 0x00ff00ffu;
    return (halves | (halves << 4u)) & 0x03030303u;
}
