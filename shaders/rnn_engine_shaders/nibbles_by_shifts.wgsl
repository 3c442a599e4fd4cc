// Numbers below 16 by shifts and masks. Eight of them are one u32, with the first in its lowest bits.

// Return the first four as signed numbers, since some devices convert unsigned ones slowly.
fn first_nibbles(word: u32) -> vec4<i32> {
    return vec4<i32>((vec4<u32>(word) >> vec4<u32>(0u, 4u, 8u, 12u)) & vec4<u32>(15u));
}

fn eight_nibbles(word: u32) -> Eight {
    return Eight(vec4<f32>(first_nibbles(word)), vec4<f32>(first_nibbles(word >> 16u)));
}

fn four_bytes(word: u32) -> vec4<f32> {
    return vec4<f32>(vec4<i32>((vec4<u32>(word) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(255u)));
}

// Return eight numbers, of which each word has every second one as bytes below 128.
fn eight_bytes(even: u32, odd: u32) -> Eight {
    let a = four_bytes(even);
    let b = four_bytes(odd);
    return Eight(vec4<f32>(a.x, b.x, a.y, b.y), vec4<f32>(a.z, b.z, a.w, b.w));
}
