// One f16 scale for each block, two scales in each u32.

@group(0) @binding(6) var<storage, read> scales: array<u32>;

fn block_scale(block: u32) -> f32 {
    return unpack2x16float(scales[block / 2u] >> (block % 2u * 16u)).x;
}
