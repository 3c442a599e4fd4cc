// Compute the decay and the gates of a channel: a row of the second half of each adapter.

#include adapter_rows
#include activations

struct Gates {
    decay: f32,
    a: f32,
    g: f32,
    v: f32,
}

const W_ADAPTER = Adapter(W_START, W_PANEL_BLOCKS, W_EIGHTS, W_INNER);
const A_ADAPTER = Adapter(A_START, A_PANEL_BLOCKS, A_EIGHTS, A_INNER);
const G_ADAPTER = Adapter(G_START, G_PANEL_BLOCKS, G_EIGHTS, G_INNER);
const V_ADAPTER = Adapter(V_START, V_PANEL_BLOCKS, V_EIGHTS, V_INNER);

fn load_gates(channel: u32, own: Own) -> Gates {
    var rows: vec4<f32>;
    rows.x = multiply_row(W_ADAPTER, channel, own);
    rows.y = multiply_row(A_ADAPTER, channel, own);
    rows.z = multiply_row(G_ADAPTER, channel, own);
    if !IS_FIRST_LAYER {
        rows.w = multiply_row(V_ADAPTER, channel, own);
    }
    rows = add_up(own, rows);
    var gates = Gates(decay(rows.x + vectors[W_BIAS + channel]), sigmoid(rows.y + vectors[A_BIAS + channel]), rows.z, 0.0);
    if !IS_FIRST_LAYER {
        gates.v = sigmoid(rows.w + vectors[V_BIAS + channel]);
    }
    return gates;
}
