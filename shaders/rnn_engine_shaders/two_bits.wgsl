// Numbers of two bits. A u32 holds 16 of them; eight are half of it.

#include CODES

@group(0) @binding(2) var<storage, read> weights: array<u32>;

fn prepare_weights(thread: u32) {}

// Return the two bits from each of the bits 0, 4, 8 and 12 on as a byte each.
fn bytes_of_pairs(bits: u32) -> u32 {
    let halves = (bits | (bits << 8u)) & 0x00ff00ffu;
    return (halves | (halves << 4u)) & 0x03030303u;
}
