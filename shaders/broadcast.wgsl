// Eight numbers of which each of a subgroup's first eight lanes loaded one: all lanes get all eight.
// Right only where every lane of a subgroup works on the same eight, and subgroups have at least eight lanes, numbered
// as threads are. On a software device a load costs one access a lane even where all lanes load the same, so this is
// eight times fewer.

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
