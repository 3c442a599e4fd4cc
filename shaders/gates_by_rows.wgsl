// Compute the decay and the gates of a channel: the second halves of the low-rank adapters. A thread multiplies its row of
// each with the adapter's inner vector. It asks for AT_ONCE eights of weights before it uses the first of them. For steps
// of one token, which then need one dispatch less. Weights are in a format of one buffer.

#include WEIGHTS
#include activations

const LOADS_AHEAD = false; // there is no other token

struct Gates {
    decay: f32,
    a: f32,
    g: f32,
    v: f32,
}

// The place of an adapter's second half and of what it reads.
struct Adapter {
    start: u32,        // number of its first block
    panel_blocks: u32, // blocks of a panel
    eights: u32,       // eights of columns, rounded up
    inner: u32,        // index of its inner vector in `projected`
}

const W_ADAPTER = Adapter(W_START, W_PANEL_BLOCKS, W_EIGHTS, W_INNER);
const A_ADAPTER = Adapter(A_START, A_PANEL_BLOCKS, A_EIGHTS, A_INNER);
const G_ADAPTER = Adapter(G_START, G_PANEL_BLOCKS, G_EIGHTS, G_INNER);
const V_ADAPTER = Adapter(V_START, V_PANEL_BLOCKS, V_EIGHTS, V_INNER);

fn load_four(index: u32) -> vec4<f32> {
    return vec4<f32>(projected[index], projected[index + 1u], projected[index + 2u], projected[index + 3u]);
}

fn multiply_row(adapter: Adapter, channel: u32) -> f32 {
    let row = adapter.start + channel / PANEL * adapter.panel_blocks + channel % PANEL;
    var sum = 0.0;
    for (var first = 0u; first < adapter.eights; first += AT_ONCE) {
        var eights: array<Eight, AT_ONCE>;
        for (var e = 0u; e < AT_ONCE; e++) {
            eights[e] = load_weights(row, min(first + e, adapter.eights - 1u));
        }
        for (var e = 0u; e < AT_ONCE; e++) {
            let inner = adapter.inner + 8u * min(first + e, adapter.eights - 1u);
            let product = dot(eights[e].low, load_four(inner)) + dot(eights[e].high, load_four(inner + 4u));
            sum += select(0.0, product, first + e < adapter.eights); // no branch, in which compilers would load late
        }
    }
    return sum;
}

fn load_gates(channel: u32) -> Gates {
    var gates: Gates;
    gates.decay = decay(multiply_row(W_ADAPTER, channel) + vectors[W_BIAS + channel]);
    gates.a = sigmoid(multiply_row(A_ADAPTER, channel) + vectors[A_BIAS + channel]);
    gates.g = multiply_row(G_ADAPTER, channel);
    if !IS_FIRST_LAYER {
        gates.v = sigmoid(multiply_row(V_ADAPTER, channel) + vectors[V_BIAS + channel]);
    }
    return gates;
}
