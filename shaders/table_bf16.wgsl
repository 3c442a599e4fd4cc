// Rows of bfloat16: the upper halves of floats.

alias FourPacked = vec2<u32>;

fn unpack_four(packed: FourPacked) -> vec4<f32> {
    let halves = vec4<u32>(packed.x << 16u, packed.x & 0xffff0000u, packed.y << 16u, packed.y & 0xffff0000u);
    return bitcast<vec4<f32>>(halves);
}
