// Weights as numbers from 0 to 31. Four u32 hold the low four bits of 32 numbers, and one the fifth bits.

#include split_codes

fn load_numbers(row: u32, eight: u32) -> Eight {
    let first = eight_index(row, eight / 4u, BLOCK_EIGHTS / 4u) * 5u;
    let word = weights[first + eight % 4u];
    let bits = (weights[first + 4u] >> (eight % 4u * 8u)) & 255u;
    let even = (word & 0x0f0f0f0fu) | (bytes_of_bits(bits) << 4u);
    let odd = ((word >> 4u) & 0x0f0f0f0fu) | (bytes_of_bits(bits >> 1u) << 4u);
    return eight_bytes(even, odd);
}
