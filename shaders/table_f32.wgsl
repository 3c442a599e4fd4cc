// Rows of floats.

alias FourPacked = vec4<f32>;

fn unpack_four(packed: FourPacked) -> vec4<f32> {
    return packed;
}
