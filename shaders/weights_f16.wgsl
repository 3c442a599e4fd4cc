// Weights as pairs of halves: eight consecutive weights of one matrix row are one vec4<u32>.

alias Packed = vec4<u32>;

fn load_block(index: u32) -> Eight {
    let packed = weights[index];
    return Eight(
        vec4<f32>(unpack2x16float(packed.x), unpack2x16float(packed.y)),
        vec4<f32>(unpack2x16float(packed.z), unpack2x16float(packed.w)),
    );
}
