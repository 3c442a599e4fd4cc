// The figures of a block of 256 weights in parts of 32: two f16 scales, then 8 scales and 8 minima of 6 bits in 12 bytes.
// The first four of each are in the low bits of a byte of their own; the others share the last four bytes and the high
// bits of the first eight.

@group(0) @binding(6) var<storage, read> scales: array<vec4<u32>>;

// Return eight codes times the scale of their part of a block, minus its minimum.
fn scale_part(codes: Eight, block: u32, part: u32) -> Eight {
    let figures = scales[block];
    let bytes = (figures.yzw >> vec3<u32>(part % 4u * 8u)) & vec3<u32>(255u);
    let early = bytes.xy & vec2<u32>(63u);
    let late = vec2<u32>(bytes.z & 15u, bytes.z >> 4u) | ((bytes.xy >> vec2<u32>(2u)) & vec2<u32>(48u));
    let scaled = unpack2x16float(figures.x) * vec2<f32>(vec2<i32>(select(early, late, part >= 4u)));
    return affine(codes, scaled.x, -scaled.y);
}
