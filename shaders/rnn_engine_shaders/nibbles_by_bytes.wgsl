// Numbers below 16 by way of bytes: two masks make bytes of all eight, and GPUs convert a byte of a word to a float in
// one instruction. Eight numbers are one u32, with the first in its lowest bits.

// Return eight numbers, of which each word has every second one as bytes below 128.
fn eight_bytes(even: u32, odd: u32) -> Eight {
    let a = vec4<f32>(unpack4xU8(even));
    let b = vec4<f32>(unpack4xU8(odd));
    return Eight(vec4<f32>(a.x, b.x, a.y, b.y), vec4<f32>(a.z, b.z, a.w, b.w));
}

fn eight_nibbles(word: u32) -> Eight {
    return eight_bytes(word & 0x0f0f0f0fu, (word >> 4u) & 0x0f0f0f0fu);
}
