// Unpack eight numbers from pairs of f16.

fn unpack_halves(packed: vec4<u32>) -> Eight {
    return Eight(
        vec4<f32>(unpack2x16float(packed.x), unpack2x16float(packed.y)),
        vec4<f32>(unpack2x16float(packed.z), unpack2x16float(packed.w)),
    );
}
