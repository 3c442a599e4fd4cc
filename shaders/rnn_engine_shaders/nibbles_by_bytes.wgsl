// Numbers below 16 by way of bytes: two masks make bytes of all eight, and GPUs convert a byte of a word to a float in
// one instruction. Eight numbers are one u32, with the first in its lowest bits.

fn eight_nibbles(word: u32) -> Eight {
    let even = vec4<f32>(unpack4xU8(word & 0x0f0f0f0fu));
    let odd = vec4<f32>(unpack4xU8((word >> 4u) & 0x0f0f0f0fu));
    return Eight(vec4<f32>(even.x, odd.x, even.y, odd.y), vec4<f32>(even.z, odd.z, even.w, odd.w));
}
