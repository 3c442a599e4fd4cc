// Numbers below 16: an eight of them is one u32, the first in its lowest bits.

// The first four, signed, since some devices convert unsigned numbers slowly.
fn first_nibbles(word: u32) -> vec4<i32> {
    return vec4<i32>((vec4<u32>(word) >> vec4<u32>(0u, 4u, 8u, 12u)) & vec4<u32>(15u));
}
