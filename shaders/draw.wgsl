// Draw the token that follows each row that asks for it, and write it into the batch as what the next step runs.
// One workgroup a row. It is the nucleus of rnn_engine/sampling/nucleus.py on the row's candidates, less the penalties
// that its slot holds: every quantity is a pair of bounds, which hold what the rounding of f32 and the tokens beyond the
// candidates can change. A token is drawn where both bounds lead to it, and is then the one that the host draws;
// elsewhere the row is left to the host.
// A run that draws no more gets the length 0. Such a run leaves its state and its row of the last norm as they are, so
// that the row's logits stay those that its last token was drawn from, whatever further steps are run. A run that has
// the length 0 from the start, since it follows one that has halted, draws nothing.

#include batch
#include readout
#include philox
#include bounds
#include last_drawn
#include sum_over_workgroup
#include penalties
@group(0) @binding(0) var<storage, read_write> batch: Batch;
@group(0) @binding(1) var<storage, read> readout: array<Readout>;      // [R]
@group(0) @binding(2) var<storage, read> halts: array<u32>;            // [slots, MASK_WORDS], a bit a token
@group(0) @binding(3) var<storage, read_write> draws: array<Draw>;     // [R]
@group(0) @binding(4) var<storage, read_write> last_drawn: array<u32>; // [slots]
@group(0) @binding(5) var<storage, read> logits: array<f32>;           // [R, VOCAB]
@group(0) @binding(6) var<storage, read_write> penalties: array<f32>;  // [slots that may have some, VOCAB]

struct Draw {
    seed_low: u32,
    seed_high: u32,
    index: u32,       // of the next token in its text
    left: u32,        // tokens that are still to be drawn
    top_k: u32,       // at least 1
    top_p: f32,
    temperature: f32,
    presence: f32,
    frequency: f32,   // there are no penalties where this and `presence` are 0
    decay: f32,
    scale: f32,       // what the slot's numbers are multiplied with
    rescale: f32,     // what they are multiplied with for good, at first
    penalty_error: f32, // what a penalty may be off by, a part of itself
    counts_input: u32, // 1 where the token that was run is to be counted, at first
    num_drawn: u32,
    outcome: u32,     // LEFT_TO_HOST, SETTLED, or GOES_ON
    tokens: array<u32, MAX_DRAWS>,
}

const LEFT_TO_HOST = 0u;
const SETTLED = 1u;
const GOES_ON = 2u; // settled, and what follows goes on from the last token

const MASK_WORDS = (VOCAB + 31u) / 32u;
const NONE = 0xffffffffu;
const UNLIMITED = 3e38;
const FARTHEST = 60.0;    // that penalties may move the greatest logit
const MOST_DOUBT = 0.05;  // in a logit that is divided by the temperature

const IDLE = 0u;
const PLAIN = 1u;
const PENALISED = 2u;
const HALTED_BEFORE = 3u;

var<workgroup> kind: u32;
var<workgroup> logit: array<f32, K>;  // of each candidate, less its penalty
var<workgroup> doubt: array<f32, K>;  // what that may be off by
var<workgroup> ranked: array<u32, K>; // the candidates, greatest logit first
var<workgroup> scaled: array<f32, K>; // by rank: logits less the greatest
var<workgroup> mass: array<f32, K>;   // exp(scaled)
var<workgroup> weight: array<f32, K>; // exp(scaled / temperature)

// The mass of the whole row less what penalties take away, in units of the first ranked token's, whose logit has moved
// by `moved`. 1e-5 and 1e-6 are LOGSUMEXP_ERROR of bounds.py.
fn bound_total(row: u32, lost: vec2<f32>, moved: f32, most_doubt: f32) -> Bounds {
    let logsumexp = readout[row].logsumexp;
    let exponent = logsumexp - readout[row].logits[0];
    let total = exp(exponent);
    let error = total * (1e-5 + 1e-6 * abs(logsumexp)) + error_of_exp(total, exponent) + lost.y;
    let unit = exp(moved);
    let error_of_unit = (6.0 + 6.0 * moved) * ULP + 2.5 * most_doubt;
    let least = max(total - lost.x - error, 0.0) * unit * (1.0 - error_of_unit);
    return Bounds(least, (total - lost.x + error) * unit * (1.0 + error_of_unit));
}

// Whether the token of this rank has it for certain, beside those before and behind it.
fn stands_apart(rank: u32, size: u32, most_doubt: f32) -> bool {
    if most_doubt == 0.0 {
        return true; // equal ones are ranked by id
    }
    let own = logit[ranked[rank]];
    let is_behind = rank == 0u || logit[ranked[max(rank, 1u) - 1u]] - own > 2.0 * most_doubt;
    return is_behind && (rank + 1u == size || own - logit[ranked[min(rank + 1u, size - 1u)]] > 2.0 * most_doubt);
}

// The rank of the token that is drawn, or NONE.
fn draw_rank(row: u32, draw: Draw, lost: vec2<f32>) -> u32 {
    let num_read = readout[row].num_candidates;
    let top = logit[ranked[0]];
    let lowest = readout[row].logits[num_read - 1u]; // no unread token is above it
    var most_doubt = 0.0; // of those that may be above it
    var has_moved = false;
    for (var i = 0u; i < num_read; i++) {
        let matters = num_read == VOCAB || logit[i] + doubt[i] >= lowest;
        most_doubt = max(most_doubt, select(0.0, doubt[i], matters));
        has_moved = has_moved || doubt[i] > 0.0;
    }
    let moved = readout[row].logits[0] - top;
    if moved > FARTHEST || most_doubt > MOST_DOUBT * min(draw.temperature, 1.0) {
        return NONE;
    }
    var size = num_read; // how many tokens have a rank that no unread one changes
    while has_moved && num_read < VOCAB && size > 0u && logit[ranked[max(size, 1u) - 1u]] - most_doubt <= lowest {
        size -= 1u;
    }
    if size == 0u {
        return NONE;
    }
    let rest = VOCAB - size;
    let error_of_mass = 2.5 * most_doubt; // by the first token's doubt and its own
    let error_of_weight = error_of_mass / draw.temperature;
    let total = bound_total(row, lost, moved, most_doubt);
    var cut = widen(Bounds(draw.top_p * total.least, draw.top_p * total.most));
    if draw.top_p >= 1.0 {
        cut = Bounds(UNLIMITED, UNLIMITED);
    }

    var fewest = 1u; // how many tokens are kept
    var greatest = 1u;
    var ranked_mass = 0.0;
    var errors = 0.0;
    for (var i = 0u; i < size; i++) {
        ranked_mass += mass[i];
        errors += error_of_exp(mass[i], scaled[i]) + mass[i] * error_of_mass;
        let error = error_of_sum(ranked_mass, errors, i);
        fewest += u32(ranked_mass + error <= cut.least);
        greatest += u32(ranked_mass - error <= cut.most);
    }
    let ranked_error = error_of_sum(ranked_mass, errors, size);
    fewest = min(min(fewest, draw.top_k), VOCAB);
    greatest = min(min(greatest, draw.top_k), VOCAB);
    if greatest == 1u {
        return select(NONE, 0u, stands_apart(0u, num_read, most_doubt));
    }

    var kept = Bounds(0.0, 0.0); // the weight of those that are kept
    var sum = 0.0;
    errors = 0.0;
    for (var i = 0u; i < size; i++) {
        sum += weight[i];
        errors += error_of_exp(weight[i], scaled[i] / draw.temperature) + weight[i] * error_of_weight;
        let error = error_of_sum(sum, errors, i);
        if i + 1u == min(fewest, size) {
            kept.least = sum - error;
        }
        if i + 1u == min(greatest, size) {
            kept.most = sum + error;
        }
    }
    if greatest > size {
        let count = f32(min(rest, draw.top_k - size));
        let ceiling = lowest - top + 2.0 * most_doubt;
        let last = exp(ceiling) + error_of_exp(exp(ceiling), ceiling);
        let least_rest = (total.least - ranked_mass - ranked_error) * count / f32(rest);
        let most_rest = min(total.most - ranked_mass + ranked_error, count * last);
        let rest_mass = Bounds(
            max(min(least_rest, cut.least - ranked_mass - ranked_error), 0.0),
            max(min(most_rest, cut.most + last - ranked_mass + ranked_error), 0.0),
        );
        let rest_weight = bound_powers(rest_mass, count, ceiling, draw.temperature);
        kept.least += select(0.0, rest_weight.least, fewest > size);
        kept.most += rest_weight.most;
        kept = widen(kept);
    }

    let word = philox(vec2<u32>(draw.seed_low, draw.seed_high), vec4<u32>(draw.index, 0u, 0u, 0u)).x >> 8u;
    let place = widen(Bounds(f32(word) / 16777216.0 * kept.least, f32(word + 1u) / 16777216.0 * kept.most));
    var before = 0.0; // the most that all tokens before may weigh
    sum = 0.0;
    errors = 0.0;
    for (var i = 0u; i < size; i++) {
        sum += weight[i];
        errors += error_of_exp(weight[i], scaled[i] / draw.temperature) + weight[i] * error_of_weight;
        let error = error_of_sum(sum, errors, i);
        if sum - error > place.most {
            return select(NONE, i, before <= place.least && stands_apart(i, num_read, most_doubt));
        }
        before = sum + error;
    }
    return NONE;
}

// Rank the candidates less their penalties, and weigh them.
fn rank_candidates(row: u32, slot: u32, thread: u32, is_penalised: bool) {
    let size = readout[row].num_candidates;
    for (var i = thread; i < size; i += THREADS) {
        var less = 0.0;
        if is_penalised {
            less = penalty_of(row, slot, readout[row].ids[i]);
        }
        let left = readout[row].logits[i] - less;
        logit[i] = left;
        doubt[i] = select(0.0, less * draws[row].penalty_error + abs(left) * ULP, less > 0.0);
    }
    workgroupBarrier();
    for (var i = thread; i < size; i += THREADS) {
        var rank = i;
        if is_penalised {
            rank = 0u;
            for (var other = 0u; other < size; other++) {
                let is_equal = logit[other] == logit[i];
                let is_earlier = readout[row].ids[other] < readout[row].ids[i];
                rank += u32(logit[other] > logit[i] || (is_equal && is_earlier));
            }
        }
        ranked[rank] = i;
    }
    workgroupBarrier();
    for (var rank = thread; rank < size; rank += THREADS) {
        let exponent = logit[ranked[rank]] - logit[ranked[0]];
        scaled[rank] = exponent;
        mass[rank] = exp(exponent);
        weight[rank] = exp(exponent / draws[row].temperature);
    }
    workgroupBarrier();
}

fn is_finite(value: f32) -> bool {
    return (bitcast<u32>(value) & 0x7f800000u) != 0x7f800000u; // however a driver compares NaN
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group.x;
    let token_index = batch.rows[row].token;
    let run = batch.tokens[token_index].run;
    let slot = batch.runs[run].slot;
    if thread == 0u {
        kind = select(IDLE, select(PLAIN, PENALISED, penalises(row)), draws[row].left > 0u);
        if kind != IDLE && batch.runs[run].length == 0u {
            kind = HALTED_BEFORE;
        }
    }
    let own_kind = workgroupUniformLoad(&kind);
    if own_kind == IDLE {
        return;
    }
    if penalises(row) {
        rescale_penalties(row, slot, thread); // the host counts on it, whatever has become of the run
    }
    if own_kind == HALTED_BEFORE {
        if thread == 0u {
            draws[row].left = 0u;
            draws[row].outcome = SETTLED;
        }
        return;
    }
    var lost = vec2<f32>(0.0, 0.0);
    if own_kind == PENALISED {
        storageBarrier();
        if thread == 0u && draws[row].counts_input == 1u {
            count_token(row, slot, batch.tokens[token_index].id);
        }
        storageBarrier();
        let own_lost = lose_mass(row, slot, thread);
        let mass_lost = sum_over_workgroup(own_lost.x, thread);
        let error = sum_over_workgroup(own_lost.y, thread);
        lost = vec2<f32>(mass_lost, error_of_sum(mass_lost, error, VOCAB / THREADS + 16u));
    }
    rank_candidates(row, slot, thread, own_kind == PENALISED);
    if thread > 0u {
        return;
    }
    draws[row].rescale = 1.0;
    draws[row].counts_input = 0u;
    var rank = NONE;
    if readout[row].num_not_finite == 0u && is_finite(readout[row].logsumexp) {
        rank = draw_rank(row, draws[row], lost);
    }
    if rank == NONE {
        draws[row].left = 0u;
        batch.runs[run].length = 0u;
        last_drawn[slot] = HALTED;
        return;
    }
    let token = readout[row].ids[ranked[rank]];
    if own_kind == PENALISED {
        count_token(row, slot, token);
    }
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
