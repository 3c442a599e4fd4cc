// Draw the next token of each row that has tokens left to draw, and write it into the batch as input of the next step.
// One workgroup per row. The row's candidates and the tokens with a bias are ranked, after biases and penalties. Then
// nucleus.wgsl draws. Every quantity is a pair of bounds, which allow for the rounding of f32 and for unread tokens. If
// both bounds lead to the same token, it is drawn, and the host would draw the same. Otherwise the row is left to the
// host.
// A run that draws no more gets the length 0. Such a run changes neither its state nor its row of the last norm. So the
// row's logits stay those from which its last token was drawn, even if further steps run.
// A run that follows a halted run has the length 0 from the start, and draws nothing.

#include batch
#include readout
#include philox
#include bounds
#include nucleus
#include last_drawn
#include sum_over_workgroup
#include max_over_workgroup
#include penalties
@group(0) @binding(0) var<storage, read_write> batch: Batch;
@group(0) @binding(1) var<storage, read> readout: array<Readout>;      // [R]
@group(0) @binding(2) var<storage, read> halts: array<u32>;            // [slots, MASK_WORDS], one bit per token
@group(0) @binding(3) var<storage, read_write> draws: Draws;
@group(0) @binding(4) var<storage, read_write> last_drawn: array<u32>; // [slots]
@group(0) @binding(5) var<storage, read> logits: array<f32>;           // [R, VOCAB]
@group(0) @binding(6) var<storage, read_write> penalties: array<u32>;  // [slots that may have some, 2, VOCAB]
@group(0) @binding(7) var<storage, read> biases: array<Bias>;          // [slots, MAX_BIASES]

struct Bias {
    token: u32,
    value: f32, // added to the token's logit
}

struct Draw {
    seed_low: u32,
    seed_high: u32,
    index: u32,       // of the next token in its text
    left: u32,        // tokens that remain to draw
    top_k: u32,       // at least 1
    top_p: f32,
    temperature: f32,
    least_scaled: f32, // log(min_p): the least kept logit minus the greatest; -UNLIMITED for a nucleus draw
    num_biases: u32,
    presence: f32,
    frequency: f32,   // there are no penalties if this and `presence` are 0 and `repeat` is 1
    decay: f32,
    scale: f32,       // the factor between the slot's numbers and the penalties
    rescale: f32,     // the slot's numbers are multiplied by it before the first token is drawn
    penalty_error: f32, // a bound of the relative error of a penalty
    repeat: f32,      // the factor of recently seen tokens, 1 or more
    position: u32,    // how many tokens have been counted as seen
    window: u32,      // how many of the latest of these tokens count as recently seen
    counts_input: u32, // 1 if the run's own token is counted before the first draw
    told_words: u32,  // words that are reported with each drawn token
    told_at: u32,     // index in `told` at which the row's words begin
    num_drawn: u32,
    outcome: u32,     // LEFT_TO_HOST, SETTLED, or GOES_ON
    tokens: array<u32, MAX_DRAWS>,
}

struct Draws {
    rows: array<Draw, MAX_ROWS>, // of which there are R
    told: array<u32>, // for each drawn token, if its draw wants log-probabilities: its logit, the row's log-sum-exp,
                      // the ids of the likeliest tokens, and their logits; all without penalties and biases
}

const LEFT_TO_HOST = 0u;
const SETTLED = 1u;
const GOES_ON = 2u; // settled, and a run that follows starts from the last token

const K_READ = K + MAX_BIASES;
const EACH = (K_READ + THREADS - 1u) / THREADS;
const MASK_WORDS = (VOCAB + 31u) / 32u;
const NONE = 0xffffffffu;
const UNLIMITED = 3e38;
const FARTHEST = 60.0;    // the most by which penalties may lower the greatest logit
const MOST_DOUBT = 0.05;  // the greatest error of a logit; below temperature 1, of the logit divided by it

const IDLE = 0u;
const PLAIN = 1u;
const ADJUSTED = 2u;  // with penalties or biases
const HALTED_BEFORE = 3u;

var<workgroup> kind: u32;
var<workgroup> count_read: atomic<u32>;
var<workgroup> ids: array<u32, K_READ>;    // of the tokens that were read, first the candidates
var<workgroup> logit: array<f32, K_READ>;  // after bias and penalties
var<workgroup> doubt: array<f32, K_READ>;  // a bound of that logit's error
var<workgroup> is_biased: array<u32, K_READ>;
var<workgroup> ranked: array<u32, K_READ>; // their places, greatest logit first
var<workgroup> scaled: array<f32, K_READ>; // by rank: logits less the greatest

// Return the bias of a token, and 1 if it has one.
fn bias_of(row: u32, slot: u32, token: u32) -> vec2<f32> {
    for (var i = 0u; i < draws.rows[row].num_biases; i++) {
        let bias = biases[slot * MAX_BIASES + i];
        if bias.token == token {
            return vec2<f32>(bias.value, 1.0);
        }
    }
    return vec2<f32>(0.0, 0.0);
}

fn is_candidate(row: u32, token: u32) -> bool {
    for (var i = 0u; i < readout[row].num_candidates; i++) {
        if readout[row].ids[i] == token {
            return true;
        }
    }
    return false;
}

// Store the token at `place`. If it has a bias, return the mass that it would have without the bias, and the error of
// that mass.
fn read_token(row: u32, slot: u32, place: u32, token: u32, own_logit: f32) -> vec2<f32> {
    var penalty = Penalty(0.0, 1.0);
    if penalises(row) {
        penalty = penalty_of(row, slot, token);
    }
    let bias = bias_of(row, slot, token);
    let biased = own_logit + bias.x;
    let scaled = scale_logit(penalty, biased);
    let result = scaled - penalty.less;
    let doubt_of_biased = penalty.factor * bias.y * (abs(biased) + abs(bias.x)) * ULP;
    let is_moved = penalty.less > 0.0 || penalty.factor > 1.0 || bias.y > 0.0;
    ids[place] = token;
    logit[place] = result;
    doubt[place] = select(
        0.0,
        doubt_of(row, penalty, biased, scaled) + abs(result) * ULP + doubt_of_biased,
        is_moved,
    );
    is_biased[place] = u32(bias.y > 0.0);
    let scaled_alone = scale_logit(penalty, own_logit);
    let plain = scaled_alone - penalty.less;
    let doubt_of_plain = doubt_of(row, penalty, own_logit, scaled_alone) + abs(plain) * ULP;
    let exponent = plain - readout[row].logits[0];
    let error = error_of_exp(exp(exponent), exponent) + exp(exponent) * 2.0 * doubt_of_plain;
    return select(vec2<f32>(0.0, 0.0), vec2<f32>(exp(exponent), error), bias.y > 0.0);
}

// Read the candidates and the tokens with a bias. Return the sum of what `read_token` returned for a thread's tokens.
fn read_tokens(row: u32, slot: u32, thread: u32) -> vec2<f32> {
    let size = readout[row].num_candidates;
    var lost = vec2<f32>(0.0, 0.0);
    for (var i = thread; i < size + draws.rows[row].num_biases; i += THREADS) {
        var place = i;
        var token = readout[row].ids[min(i, size - 1u)];
        if i >= size {
            token = biases[slot * MAX_BIASES + i - size].token;
            if is_candidate(row, token) {
                continue;
            }
            place = atomicAdd(&count_read, 1u);
        }
        lost += read_token(row, slot, place, token, logits[row * VOCAB + token]);
    }
    return lost;
}

// Rank the tokens that were read.
fn rank_tokens(row: u32, thread: u32, size: u32, is_adjusted: bool) {
    for (var i = thread; i < size; i += THREADS) {
        var rank = i;
        if is_adjusted {
            rank = 0u;
            for (var other = 0u; other < size; other++) {
                let is_equal = logit[other] == logit[i];
                rank += u32(logit[other] > logit[i] || (is_equal && ids[other] < ids[i]));
            }
        }
        ranked[rank] = i;
    }
    workgroupBarrier();
    for (var rank = thread; rank < size; rank += THREADS) {
        scaled[rank] = logit[ranked[rank]] - logit[ranked[0]];
    }
    workgroupBarrier();
}

fn is_finite(value: f32) -> bool {
    return (bitcast<u32>(value) & 0x7f800000u) != 0x7f800000u; // drivers differ in comparing NaN
}

// Report the logits from which the host computes the log-probabilities of `token`, which is drawn next, and of the
// likeliest tokens.
fn tell(row: u32, token: u32) {
    let words = draws.rows[row].told_words;
    if words == 0u {
        return;
    }
    let place = draws.rows[row].told_at + draws.rows[row].num_drawn * words;
    let count = (words - 2u) / 2u;
    draws.told[place] = bitcast<u32>(logits[row * VOCAB + token]);
    draws.told[place + 1u] = bitcast<u32>(readout[row].logsumexp);
    for (var i = 0u; i < count; i++) {
        draws.told[place + 2u + i] = readout[row].ids[i];
        draws.told[place + 2u + count + i] = bitcast<u32>(readout[row].logits[i]);
    }
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group.x;
    let token_index = batch.rows[row].token;
    let run = batch.tokens[token_index].run;
    let slot = batch.runs[run].slot;
    if thread == 0u {
        let is_adjusted = penalises(row) || draws.rows[row].num_biases > 0u;
        kind = select(IDLE, select(PLAIN, ADJUSTED, is_adjusted), draws.rows[row].left > 0u);
        atomicStore(&count_read, readout[row].num_candidates);
        clear_counts();
        if kind != IDLE && batch.runs[run].length == 0u {
            kind = HALTED_BEFORE;
        }
    }
    let own_kind = workgroupUniformLoad(&kind);
    if own_kind == IDLE {
        return;
    }
    if penalises(row) {
        rescale_penalties(row, slot, thread); // even if the run has halted, since the host relies on it
    }
    if own_kind == HALTED_BEFORE {
        if thread == 0u {
            draws.rows[row].left = 0u;
            draws.rows[row].outcome = SETTLED;
        }
        return;
    }
    storageBarrier();
    if thread == 0u && draws.rows[row].counts_input == 1u {
        count_token(row, slot, batch.tokens[token_index].id);
    }
    storageBarrier();
    var lost = read_tokens(row, slot, thread);
    if penalises(row) {
        lost += lose_mass(row, slot, thread);
    }
    if own_kind == ADJUSTED {
        let mass_lost = sum_over_workgroup(lost.x, thread);
        let error = sum_over_workgroup(lost.y, thread);
        lost = vec2<f32>(mass_lost, error_of_sum(mass_lost, error, VOCAB / THREADS + 16u));
    }
    workgroupBarrier();
    let size = atomicLoad(&count_read);
    rank_tokens(row, thread, size, own_kind == ADJUSTED);
    let rank = draw_rank(row, draws.rows[row], lost, size, own_kind == ADJUSTED, thread);
    if thread > 0u {
        return;
    }
    draws.rows[row].rescale = 1.0;
    draws.rows[row].counts_input = 0u;
    if rank == NONE || readout[row].num_not_finite > 0u || !is_finite(readout[row].logsumexp) {
        draws.rows[row].left = 0u;
        batch.runs[run].length = 0u;
        last_drawn[slot] = HALTED;
        return;
    }
    let token = ids[ranked[rank]];
    if penalises(row) {
        count_token(row, slot, token);
    }
    tell(row, token);
    draws.rows[row].tokens[draws.rows[row].num_drawn] = token;
    draws.rows[row].num_drawn += 1u;
    draws.rows[row].index += 1u;
    draws.rows[row].left -= 1u;
    let has_halted = ((halts[slot * MASK_WORDS + token / 32u] >> (token % 32u)) & 1u) == 1u;
    last_drawn[slot] = select(token, HALTED, has_halted);
    if draws.rows[row].left == 0u || has_halted {
        draws.rows[row].left = 0u;
        draws.rows[row].outcome = select(GOES_ON, SETTLED, has_halted);
        batch.runs[run].length = 0u;
    } else {
        batch.tokens[token_index].id = token;
        batch.runs[run].shift_side = 1u - batch.runs[run].shift_side;
    }
}
