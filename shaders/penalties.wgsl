// What is taken off the logits of the tokens that a text has, as rnn_engine/sampling/adjustments.py has it.
// A slot's table holds numbers; the penalties are `scale` times as great, so that one product lets all of them decay.
// The host keeps `scale` from becoming too small by `rescale`, which begins a new text too.

const LEAST_NUMBER = 1e-30; // of a token that the text has, however long ago

fn penalises(row: u32) -> bool {
    return draws.rows[row].presence > 0.0 || draws.rows[row].frequency > 0.0;
}

fn penalty_of(row: u32, slot: u32, token: u32) -> f32 {
    return penalties[slot * VOCAB + token] * draws.rows[row].scale;
}

// Multiply all numbers of a slot by the draw's `rescale`.
fn rescale_penalties(row: u32, slot: u32, thread: u32) {
    let factor = draws.rows[row].rescale;
    if factor == 1.0 {
        return;
    }
    for (var id = thread; id < VOCAB; id += THREADS) {
        let number = penalties[slot * VOCAB + id];
        let is_kept = number > 0.0 && factor > 0.0;
        penalties[slot * VOCAB + id] = select(0.0, max(number * factor, LEAST_NUMBER), is_kept);
    }
}

// Let all penalties decay by a token, then count `token`.
fn count_token(row: u32, slot: u32, token: u32) {
    let scale = draws.rows[row].scale * draws.rows[row].decay;
    let number = penalties[slot * VOCAB + token];
    let amount = draws.rows[row].frequency + select(0.0, draws.rows[row].presence, number == 0.0);
    penalties[slot * VOCAB + token] = number + amount / scale;
    draws.rows[row].scale = scale;
}

// A thread's part of the mass that the penalties take away, in units of the likeliest token's before, and its error.
fn lose_mass(row: u32, slot: u32, thread: u32) -> vec2<f32> {
    let greatest = readout[row].logits[0];
    var lost = vec2<f32>(0.0, 0.0);
    for (var id = thread; id < VOCAB; id += THREADS) {
        let less = penalty_of(row, slot, id);
        if less > 0.0 {
            let exponent = logits[row * VOCAB + id] - greatest;
            let mass = exp(exponent);
            let kept = exp(-less);
            let part = 1.0 - kept;
            let error_of_part = ULP + error_of_exp(kept, less) + kept * less * draws.rows[row].penalty_error;
            lost += vec2<f32>(mass * part, error_of_exp(mass, exponent) + mass * error_of_part);
        }
    }
    return lost;
}
