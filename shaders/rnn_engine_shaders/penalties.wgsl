// Apply penalties to the logits of the tokens in a text, as rnn_engine/sampling/adjustments.py does.
// A slot has two rows of VOCAB words. The first holds a number for each token. A token's penalty is `scale` times its
// number, so that one product lets all penalties decay. If `scale` becomes too small, the host sets `rescale`, by which
// the numbers are multiplied. It sets `rescale` to 0 for a new text without earlier penalties. The second row holds the
// position, from 1 on, at which each token was last seen, or 0 if it was not.

const LEAST_NUMBER = 1e-30; // the least number of a token in the text, even if it was seen long ago
const MOST_DROP = 200.0;    // a drop of a logit that leaves nothing of its mass

struct Penalty {
    less: f32,   // subtracted last
    factor: f32, // a positive logit is divided by it, any other is multiplied by it; 1 or more
}

fn penalises(row: u32) -> bool {
    return draws.rows[row].presence > 0.0 || draws.rows[row].frequency > 0.0 || draws.rows[row].repeat > 1.0;
}

fn penalty_of(row: u32, slot: u32, token: u32) -> Penalty {
    let number = bitcast<f32>(penalties[2u * slot * VOCAB + token]);
    var factor = 1.0;
    if draws.rows[row].repeat > 1.0 {
        let position = draws.rows[row].position;
        let seen = penalties[(2u * slot + 1u) * VOCAB + token];
        factor = select(1.0, draws.rows[row].repeat, seen > position - min(position, draws.rows[row].window));
    }
    return Penalty(number * draws.rows[row].scale, factor);
}

fn scale_logit(penalty: Penalty, logit: f32) -> f32 {
    let scaled = select(logit * penalty.factor, logit / penalty.factor, logit > 0.0);
    return select(logit, scaled, penalty.factor > 1.0);
}

// Return a bound of the error of a penalised logit, except that of the last subtraction.
fn doubt_of(row: u32, penalty: Penalty, logit: f32, scaled: f32) -> f32 {
    let doubt_of_scaled = select(0.0, (abs(logit) + 4.0 * abs(scaled)) * ULP, penalty.factor > 1.0);
    return penalty.less * draws.rows[row].penalty_error + doubt_of_scaled;
}

// Multiply all numbers of a slot by the draw's `rescale`.
fn rescale_penalties(row: u32, slot: u32, thread: u32) {
    let factor = draws.rows[row].rescale;
    if factor == 1.0 {
        return;
    }
    for (var id = thread; id < VOCAB; id += THREADS) {
        let number = bitcast<f32>(penalties[2u * slot * VOCAB + id]);
        let is_kept = number > 0.0 && factor > 0.0;
        penalties[2u * slot * VOCAB + id] = bitcast<u32>(select(0.0, max(number * factor, LEAST_NUMBER), is_kept));
    }
}

// Decay all penalties by one token, then count `token`.
fn count_token(row: u32, slot: u32, token: u32) {
    let scale = draws.rows[row].scale * draws.rows[row].decay;
    let number = bitcast<f32>(penalties[2u * slot * VOCAB + token]);
    let amount = draws.rows[row].frequency + select(0.0, draws.rows[row].presence, number == 0.0);
    penalties[2u * slot * VOCAB + token] = bitcast<u32>(number + amount / scale);
    draws.rows[row].scale = scale;
    draws.rows[row].position += 1u;
    penalties[(2u * slot + 1u) * VOCAB + token] = draws.rows[row].position;
}

// Return a thread's part of the mass that the penalties take away, and its error. The unit is the mass that the
// likeliest token had before.
fn lose_mass(row: u32, slot: u32, thread: u32) -> vec2<f32> {
    let greatest = readout[row].logits[0];
    var lost = vec2<f32>(0.0, 0.0);
    for (var id = thread; id < VOCAB; id += THREADS) {
        let penalty = penalty_of(row, slot, id);
        if penalty.less > 0.0 || penalty.factor > 1.0 {
            let logit = logits[row * VOCAB + id];
            let exponent = logit - greatest;
            let mass = exp(exponent);
            let scaled = scale_logit(penalty, logit);
            let drop = min(logit - scaled + penalty.less, MOST_DROP);
            let kept = exp(-drop);
            let part = 1.0 - kept;
            let error_of_part = ULP + error_of_exp(kept, drop) + kept * doubt_of(row, penalty, logit, scaled);
            lost += vec2<f32>(mass * part, error_of_exp(mass, exponent) + mass * error_of_part);
        }
    }
    return lost;
}
