// Give all lanes of a subgroup the eight numbers that its first eight lanes have loaded, one each.
// This is right only if every lane of a subgroup works on the same eight numbers, and if subgroups have at least eight
// lanes, numbered in the order of the threads. On a software device a load costs one access per lane, even if all lanes
// load the same number. So a broadcast takes an eighth of the accesses.

fn broadcast_eight(own: f32) -> Eight {
    return Eight(
        vec4<f32>(
            subgroupBroadcast(own, 0u), subgroupBroadcast(own, 1u), subgroupBroadcast(own, 2u), subgroupBroadcast(own, 3u)
        ),
        vec4<f32>(
            subgroupBroadcast(own, 4u), subgroupBroadcast(own, 5u), subgroupBroadcast(own, 6u), subgroupBroadcast(own, 7u)
        ),
    );
}
