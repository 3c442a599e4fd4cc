// The decays, which a matmul has stored, or one vector of them for all tokens, for which DECAY_STRIDE is 0.

const LOADS_AHEAD = true; // of the present token

@group(0) @binding(2) var<storage, read> decay: array<f32>; // [WIDTH] or [T, WIDTH], from DECAY_START on

fn load_decay(token: u32, channel: u32, own: Own) -> f32 {
    return decay[DECAY_START + token * DECAY_STRIDE + channel];
}
