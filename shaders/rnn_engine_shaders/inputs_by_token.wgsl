// Load the inputs of eight columns: each lane loads all eight of one token. Only for SPLITS == 1 and at most eight
// tokens. On a software device a wide load costs about as much as a narrow one, so two wide loads replace one load per
// token. The conditions of broadcast.wgsl apply.

var<private> shared_inputs: array<Eight, PANEL>;

fn first_eight(split: u32) -> u32 {
    return 0u; // see inputs_broadcast.wgsl
}

fn share_inputs(own_index: u32) {
    let low = inputs[own_index];
    let high = inputs[own_index + 1u];
    shared_inputs[0] = Eight(subgroupBroadcast(low, 0u), subgroupBroadcast(high, 0u));
    shared_inputs[1] = Eight(subgroupBroadcast(low, 1u), subgroupBroadcast(high, 1u));
    shared_inputs[2] = Eight(subgroupBroadcast(low, 2u), subgroupBroadcast(high, 2u));
    shared_inputs[3] = Eight(subgroupBroadcast(low, 3u), subgroupBroadcast(high, 3u));
    shared_inputs[4] = Eight(subgroupBroadcast(low, 4u), subgroupBroadcast(high, 4u));
    shared_inputs[5] = Eight(subgroupBroadcast(low, 5u), subgroupBroadcast(high, 5u));
    shared_inputs[6] = Eight(subgroupBroadcast(low, 6u), subgroupBroadcast(high, 6u));
    shared_inputs[7] = Eight(subgroupBroadcast(low, 7u), subgroupBroadcast(high, 7u));
}

fn load_input(token: u32, index: u32, lane: u32) -> Eight {
    return shared_inputs[token];
}
