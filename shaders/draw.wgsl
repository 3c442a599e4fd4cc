// Draw the token that follows each row that asks for it, and write it into the batch as what the next step runs.
// One workgroup a row. It is the nucleus of rnn_engine/sampling/nucleus.py on the row's candidates: every quantity is a
// pair of bounds, which hold what the rounding of f32 and the tokens beyond the candidates can change. A token is drawn
// where both bounds lead to it, and is then the one that the host draws; elsewhere the row is left to the host.
// A run that draws no more gets the length 0. Such a run leaves its state and its row of the last norm as they are, so
// that the row's logits stay those that its last token was drawn from, whatever further steps are run. A run that has
// the length 0 from the start, since it follows one that has halted, draws nothing.

#include batch
#include readout
#include philox
#include last_drawn
@group(0) @binding(0) var<storage, read_write> batch: Batch;
@group(0) @binding(1) var<storage, read> readout: array<Readout>;      // [R]
@group(0) @binding(2) var<storage, read> halts: array<u32>;            // [slots, MASK_WORDS], a bit a token
@group(0) @binding(3) var<storage, read_write> draws: array<Draw>;     // [R]
@group(0) @binding(4) var<storage, read_write> last_drawn: array<u32>; // [slots]

struct Draw {
    seed_low: u32,
    seed_high: u32,
    index: u32,       // of the next token in its text
    left: u32,        // tokens that are still to be drawn
    top_k: u32,       // at least 1
    top_p: f32,
    temperature: f32,
    num_drawn: u32,
    outcome: u32,     // LEFT_TO_HOST, SETTLED, or GOES_ON
    tokens: array<u32, MAX_DRAWS>,
}

struct Bounds {
    least: f32,
    most: f32,
}

const LEFT_TO_HOST = 0u;
const SETTLED = 1u;
const GOES_ON = 2u; // settled, and what follows goes on from the last token

const MASK_WORDS = (VOCAB + 31u) / 32u;
const ULP = 1.1920929e-7;
const NONE = 0xffffffffu;
const UNLIMITED = 3e38;

var<workgroup> scaled: array<f32, K>; // logits less the greatest
var<workgroup> mass: array<f32, K>;   // exp(scaled)
var<workgroup> weight: array<f32, K>; // exp(scaled / temperature)

// What exp(exponent) may be off by: 3 + 2 |x| units in WGSL, and what the exponent's own rounding makes of it.
fn error_of_exp(value: f32, exponent: f32) -> f32 {
    return value * (4.0 + 6.0 * abs(exponent)) * ULP;
}

// What a sum of `count` such values may be off by, their own errors included.
fn error_of_sum(sum: f32, errors: f32, count: u32) -> f32 {
    return errors + f32(count + 4u) * ULP * sum;
}

fn widen(bounds: Bounds) -> Bounds {
    return Bounds(bounds.least * (1.0 - 4.0 * ULP), bounds.most * (1.0 + 4.0 * ULP));
}

// The mass of the whole row, in units of its first token's. 1e-5 and 1e-6 are LOGSUMEXP_ERROR of bounds.py.
fn bound_total(row: u32) -> Bounds {
    let logsumexp = readout[row].logsumexp;
    let exponent = logsumexp - readout[row].logits[0];
    let total = exp(exponent);
    let error = total * (1e-5 + 1e-6 * abs(logsumexp)) + error_of_exp(total, exponent);
    return Bounds(total - error, total + error);
}

// The place among the candidates of the token that is drawn, or NONE.
fn draw_place(row: u32, draw: Draw) -> u32 {
    let size = readout[row].num_candidates;
    let rest = VOCAB - size;
    let total = bound_total(row);
    var cut = widen(Bounds(draw.top_p * total.least, draw.top_p * total.most));
    if draw.top_p >= 1.0 {
        cut = Bounds(UNLIMITED, UNLIMITED);
    }

    var fewest = 1u; // how many tokens are kept
    var greatest = 1u;
    var ranked = 0.0;
    var errors = 0.0;
    for (var i = 0u; i < size; i++) {
        ranked += mass[i];
        errors += error_of_exp(mass[i], scaled[i]);
        let error = error_of_sum(ranked, errors, i);
        fewest += u32(ranked + error <= cut.least);
        greatest += u32(ranked - error <= cut.most);
    }
    let ranked_error = error_of_sum(ranked, errors, size);
    fewest = min(min(fewest, draw.top_k), VOCAB);
    greatest = min(min(greatest, draw.top_k), VOCAB);
    if greatest == 1u {
        return 0u;
    }

    var kept = Bounds(0.0, 0.0); // the weight of those that are kept
    var sum = 0.0;
    errors = 0.0;
    for (var i = 0u; i < size; i++) {
        sum += weight[i];
        errors += error_of_exp(weight[i], scaled[i] / draw.temperature);
        let error = error_of_sum(sum, errors, i);
        if i + 1u == min(fewest, size) {
            kept.least = sum - error;
        }
        if i + 1u == min(greatest, size) {
            kept.most = sum + error;
        }
    }
    if greatest > size {
        if draw.temperature != 1.0 {
            return NONE;
        }
        let count = f32(min(rest, draw.top_k - size));
        let last = mass[size - 1u] + error_of_exp(mass[size - 1u], scaled[size - 1u]);
        if fewest > size {
            let least_rest = (total.least - ranked - ranked_error) * count / f32(rest);
            kept.least += max(min(least_rest, cut.least - ranked - ranked_error), 0.0) * (1.0 - 8.0 * ULP);
        }
        let most_rest = min(total.most - ranked + ranked_error, count * last);
        kept.most += max(min(most_rest, cut.most + last - ranked + ranked_error), 0.0) * (1.0 + 8.0 * ULP);
    }

    let word = philox(vec2<u32>(draw.seed_low, draw.seed_high), vec4<u32>(draw.index, 0u, 0u, 0u)).x >> 8u;
    let place = widen(Bounds(f32(word) / 16777216.0 * kept.least, f32(word + 1u) / 16777216.0 * kept.most));
    var before = 0.0; // the most that all tokens before may weigh
    sum = 0.0;
    errors = 0.0;
    for (var i = 0u; i < size; i++) {
        sum += weight[i];
        errors += error_of_exp(weight[i], scaled[i] / draw.temperature);
        let error = error_of_sum(sum, errors, i);
        if sum - error > place.most {
            return select(NONE, i, before <= place.least);
        }
        before = sum + error;
    }
    return NONE;
}

fn is_finite(value: f32) -> bool {
    return (bitcast<u32>(value) & 0x7f800000u) != 0x7f800000u; // however a driver compares NaN
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group.x;
    let size = readout[row].num_candidates;
    let temperature = draws[row].temperature;
    for (var i = thread; i < size; i += THREADS) {
        let exponent = readout[row].logits[i] - readout[row].logits[0];
        scaled[i] = exponent;
        mass[i] = exp(exponent);
        weight[i] = exp(exponent / temperature);
    }
    workgroupBarrier();
    if thread > 0u || draws[row].left == 0u {
        return;
    }
    let token_index = batch.rows[row].token;
    let run = batch.tokens[token_index].run;
    let slot = batch.runs[run].slot;
    if batch.runs[run].length == 0u {
        draws[row].left = 0u;
        draws[row].outcome = SETTLED;
        return;
    }
    var place = NONE;
    if readout[row].num_not_finite == 0u && is_finite(readout[row].logsumexp) {
        place = draw_place(row, draws[row]);
    }
    if place == NONE {
        draws[row].left = 0u;
        batch.runs[run].length = 0u;
        last_drawn[slot] = HALTED;
        return;
    }
    let token = readout[row].ids[place];
    draws[row].tokens[draws[row].num_drawn] = token;
    draws[row].num_drawn += 1u;
    draws[row].index += 1u;
    draws[row].left -= 1u;
    let has_halted = ((halts[slot * MASK_WORDS + token / 32u] >> (token % 32u)) & 1u) == 1u;
    last_drawn[slot] = select(token, HALTED, has_halted);
    if draws[row].left == 0u || has_halted {
        draws[row].left = 0u;
        draws[row].outcome = select(GOES_ON, SETTLED, has_halted);
        batch.runs[run].length = 0u;
    } else {
        batch.tokens[token_index].id = token;
        batch.runs[run].shift_side = 1u - batch.runs[run].shift_side;
    }
}
