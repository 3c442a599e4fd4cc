// Each of a subgroup's first eight lanes loads one input, and all lanes get all eight by broadcast.
// Right only where the lanes of a subgroup work on the same block: SPLITS == 1, and subgroups of at least 8 lanes.
// On a software device a load costs one access a lane even where all lanes load the same, so this is eight times fewer.

struct Input {
    low: vec4<f32>,
    high: vec4<f32>,
}

fn load_input(index: u32, lane: u32) -> Input {
    let own = inputs[index + lane / 4u][lane % 4u];
    return Input(
        vec4<f32>(
            subgroupBroadcast(own, 0u), subgroupBroadcast(own, 1u), subgroupBroadcast(own, 2u), subgroupBroadcast(own, 3u)
        ),
        vec4<f32>(
            subgroupBroadcast(own, 4u), subgroupBroadcast(own, 5u), subgroupBroadcast(own, 6u), subgroupBroadcast(own, 7u)
        ),
    );
}

fn multiply_add(block: Block, input: Input, sum: f32) -> f32 {
    let low = fma(block.low.w, input.low.w, fma(block.low.z, input.low.z, fma(block.low.y, input.low.y, fma(block.low.x, input.low.x, sum))));
    return fma(block.high.w, input.high.w, fma(block.high.z, input.high.z, fma(block.high.y, input.high.y, fma(block.high.x, input.high.x, low))));
}
