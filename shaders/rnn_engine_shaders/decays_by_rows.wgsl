// Compute the decay of a channel: a row of the second half of its adapter.

#include adapter_rows

const W_ADAPTER = Adapter(W_START, W_PANEL_BLOCKS, W_EIGHTS, W_INNER);

fn load_decay(token: u32, channel: u32, own: Own) -> f32 {
    let row = add_up_one(own, multiply_row(W_ADAPTER, channel, own));
    return exp(-exp(row + vectors[W_BIAS + channel]));
}
