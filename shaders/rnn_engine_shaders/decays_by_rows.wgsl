// Compute the decay of a channel: a row of the second half of its adapter.

#include adapter_rows

const W_ADAPTER = Adapter(W_START, W_PANEL_BLOCKS, W_EIGHTS, W_INNER);

fn load_decay(token: u32, channel: u32) -> f32 {
    return exp(-exp(multiply_row(W_ADAPTER, channel) + vectors[W_BIAS + channel]));
}
