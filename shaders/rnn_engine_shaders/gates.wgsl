// The decay and the gates of a channel, which a matmul has stored.

const LOADS_AHEAD = true; // of the present token

@group(0) @binding(2) var<storage, read> gates: array<f32>; // decay, a, g, v: [4, MAX_TOKENS, WIDTH]

struct Gates {
    decay: f32,
    a: f32,
    g: f32,
    v: f32, // of the value residual, which layer 0 lacks
}

fn load_gates(place: u32, own: Own) -> Gates {
    var loaded = Gates(gates[place], gates[PLANE + place], gates[2u * PLANE + place], 0.0);
    if !IS_FIRST_LAYER {
        loaded.v = gates[3u * PLANE + place];
    }
    return loaded;
}
