// Rows of halves.

alias FourPacked = vec2<u32>;

fn unpack_four(packed: FourPacked) -> vec4<f32> {
    return vec4<f32>(unpack2x16float(packed.x), unpack2x16float(packed.y));
}
