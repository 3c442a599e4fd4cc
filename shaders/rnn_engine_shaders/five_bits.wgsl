// Weights as numbers from 0 to 31. Four u32 hold the low four bits of 32 numbers, and one the fifth bits.

#include CODES

@group(0) @binding(2) var<storage, read> weights: array<u32>;

fn prepare_weights(thread: u32) {}

// Return the bits 0, 2, 4 and 6 as bit 4 of a byte each. The product has each of them where it is wanted, and other sums
// elsewhere.
fn fifth_bits(bits: u32) -> u32 {
    return (((bits & 0x55u) * 0x41041u) & 0x01010101u) << 4u;
}

// Return eight numbers of a row whose blocks have `block_eights` times eight.
fn load_numbers(row: u32, eight: u32, block_eights: u32) -> Eight {
    let first = eight_index(row, eight / 4u, block_eights / 4u) * 5u;
    let word = weights[first + eight % 4u];
    let bits = (weights[first + 4u] >> (eight % 4u * 8u)) & 255u;
    let even = (word & 0x0f0f0f0fu) | fifth_bits(bits);
    let odd = ((word >> 4u) & 0x0f0f0f0fu) | fifth_bits(bits >> 1u);
    return eight_bytes(even, odd);
}
