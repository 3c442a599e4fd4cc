// Find the token to draw, from bounds of all quantities of a row. The draw is that of `Nucleus` of
// rnn_engine/sampling/samplers.py, or of the steps of rnn_engine/sampling/chain.py that keep the likeliest tokens:
// top-k, then top-p of the remaining tokens, then min-p.

// The bounds of a row after its tokens are ranked. Masses are in units of the first ranked token's.
struct RankedRow {
    num_read: u32,
    size: u32,        // how many of the read tokens have a rank that no unread token can change
    most_doubt: f32,  // the greatest error of a logit among the tokens that may matter
    ceiling: f32,     // an upper bound of all other logits, minus the first ranked logit
    total: Bounds,    // the mass of all tokens
}

struct Counts {
    fewest: u32,
    greatest: u32,
}

// Return bounds of a row's total mass after penalties and biases. `lost` is the mass that these have removed, with its
// error. `gained` is the mass of the tokens with a bias, with its error. 1e-5 and 1e-6 are LOGSUMEXP_ERROR of
// ranking.py.
fn bound_total(row: u32, lost: vec2<f32>, gained: vec2<f32>, most_doubt: f32) -> Bounds {
    let logsumexp = readout[row].logsumexp;
    let exponent = logsumexp - readout[row].logits[0];
    let total = exp(exponent);
    let error = total * (1e-5 + 1e-6 * abs(logsumexp)) + error_of_exp(total, exponent) + lost.y;
    let moved = readout[row].logits[0] - logit[ranked[0]];
    let unit = exp(moved);
    let error_of_unit = (6.0 + 6.0 * abs(moved)) * ULP + 2.5 * most_doubt;
    let least = max(total - lost.x - error, 0.0) * unit * max(1.0 - error_of_unit, 0.0);
    let most = max(total - lost.x + error, 0.0) * unit * (1.0 + error_of_unit);
    return widen(Bounds(least + gained.x - gained.y, most + gained.x + gained.y));
}

fn describe_row(row: u32, lost: vec2<f32>, num_read: u32, is_adjusted: bool, thread: u32) -> RankedRow {
    let num_candidates = readout[row].num_candidates;
    let is_complete = num_candidates == VOCAB;
    let lowest = readout[row].logits[num_candidates - 1u]; // an upper bound of unread logits
    var most_doubt = 0.0;
    var size = num_read;
    var gained = vec2<f32>(0.0, 0.0);
    if is_adjusted {
        var own_doubt = vec2<f32>(0.0, 0.0); // of the tokens that may matter, and of all
        for (var i = thread; i < num_read; i += THREADS) {
            let matters = is_complete || logit[i] + doubt[i] >= lowest;
            own_doubt = max(own_doubt, vec2<f32>(select(0.0, doubt[i], matters), doubt[i]));
        }
        most_doubt = max_over_workgroup(own_doubt.x, thread);
        let has_moved = max_over_workgroup(own_doubt.y, thread) > 0.0;
        var own_size = 0.0;
        for (var rank = thread; rank < num_read; rank += THREADS) {
            let place = ranked[rank];
            own_size += select(0.0, 1.0, logit[place] - most_doubt > lowest);
            if is_biased[place] == 1u {
                let mass = exp(scaled[rank]);
                let error = error_of_exp(mass, scaled[rank]) + mass * 2.5 * (doubt[place] + most_doubt);
                gained += vec2<f32>(mass, error);
            }
        }
        size = select(num_read, u32(sum_over_workgroup(own_size, thread)), has_moved && !is_complete);
        let mass_gained = sum_over_workgroup(gained.x, thread);
        let error = sum_over_workgroup(gained.y, thread);
        gained = vec2<f32>(mass_gained, error_of_sum(mass_gained, error, num_read));
    }
    let ceiling = lowest - logit[ranked[0]] + 2.0 * most_doubt;
    return RankedRow(num_read, size, most_doubt, ceiling, bound_total(row, lost, gained, most_doubt));
}

// The sums over the tokens up to a rank: of their masses, of these masses' errors, of their weights, of these' errors.
// A weight is a mass to the power 1 / temperature.
var<workgroup> sums: array<vec4<f32>, K_READ>;
var<workgroup> sums_of_threads: array<vec4<f32>, THREADS>;

const AT_ONCE = min(THREADS, 8u);
const SUMMING = (K_READ + EACH - 1u) / EACH; // threads that sum up tokens

// Compute `sums`: each thread sums up EACH tokens, and adds what the threads before it have.
fn sum_tokens(ranks: RankedRow, temperature: f32, thread: u32) {
    let error_of_weight = 2.5 * ranks.most_doubt / temperature;
    var own: array<vec4<f32>, EACH>;
    var sum = vec4<f32>(0.0, 0.0, 0.0, 0.0);
    for (var i = 0u; i < EACH; i++) {
        let rank = EACH * thread + i;
        if rank < ranks.size {
            let exponent = scaled[rank] / temperature;
            let mass = exp(scaled[rank]);
            let weight = exp(exponent);
            let error = error_of_exp(mass, scaled[rank]) + mass * 2.5 * ranks.most_doubt;
            sum += vec4<f32>(mass, error, weight, error_of_exp(weight, exponent) + weight * error_of_weight);
        }
        own[i] = sum;
    }
    sums_of_threads[thread] = sum;
    workgroupBarrier();
    var before = vec4<f32>(0.0, 0.0, 0.0, 0.0);
    for (var first = 0u; first < SUMMING; first += AT_ONCE) {
        for (var i = 0u; i < AT_ONCE; i++) {
            before += select(vec4<f32>(0.0, 0.0, 0.0, 0.0), sums_of_threads[first + i], first + i < thread);
        }
    }
    for (var i = 0u; i < EACH; i++) {
        if EACH * thread + i < K_READ {
            sums[EACH * thread + i] = before + own[i];
        }
    }
    workgroupBarrier();
}

// Return bounds of the mass or weight of the first `count` tokens, from its sum and the sum of its errors.
fn bound_first(sum: vec2<f32>, count: u32) -> Bounds {
    let error = error_of_sum(sum.x, sum.y, count);
    return Bounds(sum.x - error, sum.x + error);
}

// Return true if the token of this rank is certain to come after the token before it and before the one after it.
fn stands_apart(ranks: RankedRow, rank: u32) -> bool {
    if ranks.most_doubt == 0.0 {
        return true; // equal logits are ranked by id
    }
    let own = logit[ranked[rank]];
    let gap = 2.0 * ranks.most_doubt;
    let is_behind = rank == 0u || logit[ranked[max(rank, 1u) - 1u]] - own > gap;
    return is_behind && (rank + 1u == ranks.num_read || own - logit[ranked[min(rank + 1u, K_READ - 1u)]] > gap);
}

// Return bounds of the mass of the next `count` tokens after the certain ones.
fn bound_rest(ranks: RankedRow, certain: Bounds, count: u32) -> Bounds {
    if count == 0u {
        return Bounds(0.0, 0.0);
    }
    let last = exp(ranks.ceiling) + error_of_exp(exp(ranks.ceiling), ranks.ceiling);
    let least = (ranks.total.least - certain.most) * f32(count) / f32(VOCAB - ranks.size);
    return Bounds(max(least, 0.0), max(min(ranks.total.most - certain.least, f32(count) * last), 0.0));
}

// Return bounds of the cut: a token is kept if the mass of the tokens before it is at most the cut.
fn bound_cut(ranks: RankedRow, draw: Draw, first: Bounds, rest: Bounds) -> Bounds {
    if draw.top_p >= 1.0 {
        return Bounds(UNLIMITED, UNLIMITED);
    }
    var whole = ranks.total;
    if draw.least_scaled > -UNLIMITED { // top_p is a share of the tokens that top_k keeps
        whole = Bounds(first.least + rest.least, first.most + rest.most);
    }
    return widen(Bounds(draw.top_p * whole.least, draw.top_p * whole.most));
}

var<workgroup> kept_by_mass: array<atomic<u32>, 2>;   // the fewest and the most
var<workgroup> kept_by_chance: array<atomic<u32>, 2>;
var<workgroup> drawn_rank: atomic<u32>; // the first whose sum of weights is certain to be beyond the drawn place

// Prepare the counts of `count_kept` and `draw_rank`, in one thread.
fn clear_counts() {
    for (var i = 0u; i < 2u; i++) {
        atomicStore(&kept_by_mass[i], 1u);
        atomicStore(&kept_by_chance[i], 0u);
    }
    atomicStore(&drawn_rank, NONE);
}

// Return the least and the greatest possible number of kept tokens. A number greater than `ranks.size` includes some of
// the tokens after those with a certain rank.
fn count_kept(ranks: RankedRow, draw: Draw, cut: Bounds, thread: u32) -> Counts {
    for (var rank = thread; rank < ranks.size; rank += THREADS) {
        let mass = bound_first(sums[rank].xy, rank);
        let error_of_chance = 2.0 * ranks.most_doubt + 4.0 * ULP * abs(scaled[rank]);
        if mass.least <= cut.most {
            atomicAdd(&kept_by_mass[1], 1u);
            atomicAdd(&kept_by_mass[0], u32(mass.most <= cut.least));
        }
        if scaled[rank] + error_of_chance >= draw.least_scaled {
            atomicAdd(&kept_by_chance[1], 1u);
            atomicAdd(&kept_by_chance[0], u32(scaled[rank] - error_of_chance > draw.least_scaled));
        }
    }
    workgroupBarrier();
    let by_mass = Counts(atomicLoad(&kept_by_mass[0]), atomicLoad(&kept_by_mass[1]));
    var by_chance = Counts(atomicLoad(&kept_by_chance[0]), atomicLoad(&kept_by_chance[1]));
    if by_chance.greatest == ranks.size && ranks.ceiling + 4.0 * ULP * abs(ranks.ceiling) >= draw.least_scaled {
        by_chance.greatest = VOCAB;
    }
    if draw.least_scaled <= -UNLIMITED {
        by_chance.fewest = VOCAB;
    }
    let most = min(draw.top_k, VOCAB);
    let fewest = min(min(by_mass.fewest, by_chance.fewest), most);
    return Counts(max(fewest, 1u), max(min(min(by_mass.greatest, by_chance.greatest), most), 1u));
}

// Return the rank of the token that is drawn, or NONE. All threads must call this; the first one gets the rank.
fn draw_rank(row: u32, draw: Draw, lost: vec2<f32>, num_read: u32, is_adjusted: bool, thread: u32) -> u32 {
    let ranks = describe_row(row, lost, num_read, is_adjusted, thread);
    let size = ranks.size;
    sum_tokens(ranks, draw.temperature, thread);
    let certain = bound_first(sums[max(size, 1u) - 1u].xy, size);
    let num_first = min(size, draw.top_k); // certain tokens that top_k keeps
    let num_rest = min(VOCAB - size, draw.top_k - num_first); // and uncertain ones
    let rest = bound_rest(ranks, certain, num_rest);
    let cut = bound_cut(ranks, draw, bound_first(sums[max(num_first, 1u) - 1u].xy, num_first), rest);
    let counts = count_kept(ranks, draw, cut, thread);

    var kept = Bounds( // the weight of the kept tokens
        bound_first(sums[max(min(counts.fewest, size), 1u) - 1u].zw, min(counts.fewest, size)).least,
        bound_first(sums[max(min(counts.greatest, size), 1u) - 1u].zw, min(counts.greatest, size)).most,
    );
    if counts.greatest > size {
        let last = exp(ranks.ceiling) + error_of_exp(exp(ranks.ceiling), ranks.ceiling);
        let rest_kept = Bounds(
            max(min(rest.least, cut.least - certain.most), 0.0),
            max(min(rest.most, cut.most + last - certain.least), 0.0),
        );
        let rest_weight = bound_powers(rest_kept, f32(num_rest), ranks.ceiling, draw.temperature);
        kept.least += select(0.0, rest_weight.least, counts.fewest > size);
        kept.most += rest_weight.most;
        kept = widen(kept);
    }

    let word = philox(vec2<u32>(draw.seed_low, draw.seed_high), vec4<u32>(draw.index, 0u, 0u, 0u)).x >> 8u;
    let place = widen(Bounds(f32(word) / 16777216.0 * kept.least, f32(word + 1u) / 16777216.0 * kept.most));
    for (var rank = thread; rank < size; rank += THREADS) {
        if bound_first(sums[rank].zw, rank).least > place.most {
            atomicMin(&drawn_rank, rank);
        }
    }
    workgroupBarrier();
    let rank = atomicLoad(&drawn_rank);
    let moved = readout[row].logits[0] - logit[ranked[0]];
    if size == 0u || moved > FARTHEST || ranks.most_doubt > MOST_DOUBT * min(draw.temperature, 1.0) {
        return NONE;
    }
    if counts.greatest == 1u {
        return select(NONE, 0u, stands_apart(ranks, 0u));
    }
    if rank == NONE || (counts.greatest > size && draw.least_scaled > -UNLIMITED) {
        return NONE;
    }
    var before = 0.0; // an upper bound of the weight of all tokens before this one
    if rank > 0u {
        before = bound_first(sums[rank - 1u].zw, rank - 1u).most;
    }
    return select(NONE, rank, before <= place.least && stands_apart(ranks, rank));
}
