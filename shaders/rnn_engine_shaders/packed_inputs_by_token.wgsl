// Load a pair of words of each token's inputs: each lane loads the pair of one token. As in inputs_by_token.wgsl.

var<private> shared_inputs: array<vec2<u32>, PANEL>;

fn first_block_taken(split: u32) -> u32 {
    return 0u; // see inputs_broadcast.wgsl
}

fn share_inputs(own_index: u32) {
    let own = inputs[own_index];
    shared_inputs[0] = subgroupBroadcast(own, 0u);
    shared_inputs[1] = subgroupBroadcast(own, 1u);
    shared_inputs[2] = subgroupBroadcast(own, 2u);
    shared_inputs[3] = subgroupBroadcast(own, 3u);
    shared_inputs[4] = subgroupBroadcast(own, 4u);
    shared_inputs[5] = subgroupBroadcast(own, 5u);
    shared_inputs[6] = subgroupBroadcast(own, 6u);
    shared_inputs[7] = subgroupBroadcast(own, 7u);
}

fn load_input(token: u32, index: u32) -> vec2<u32> {
    return shared_inputs[token];
}
