// Multiply rows of the second halves of low-rank adapters with the adapters' inner vectors, in a recurrence of one token,
// which then needs one dispatch less. A thread asks for AT_ONCE eights of weights before it uses the first of them. Weights
// are in a format of one buffer.

#include WEIGHTS

const LOADS_AHEAD = false; // there is no other token

// The place of an adapter's second half and of what it reads.
struct Adapter {
    start: u32,        // number of its first block
    panel_blocks: u32, // blocks of a panel
    eights: u32,       // eights of columns, rounded up
    inner: u32,        // index of its inner vector in `projected`
}

fn load_four(index: u32) -> vec4<f32> {
    return vec4<f32>(projected[index], projected[index + 1u], projected[index + 2u], projected[index + 3u]);
}

// Return the thread's part of a channel's row, of whose eights every SHARES-th group of AT_ONCE is its own.
fn multiply_row(adapter: Adapter, channel: u32, own: Own) -> f32 {
    let row = adapter.start + channel / PANEL * adapter.panel_blocks + channel % PANEL;
    var sum = 0.0;
    for (var first = own.share * AT_ONCE; first < adapter.eights; first += SHARES * AT_ONCE) {
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
