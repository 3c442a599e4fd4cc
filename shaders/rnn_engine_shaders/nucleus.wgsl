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

fn describe_row(row: u32, lost: vec2<f32>, num_read: u32) -> RankedRow {
    let num_candidates = readout[row].num_candidates;
    let is_complete = num_candidates == VOCAB;
    let lowest = readout[row].logits[num_candidates - 1u]; // an upper bound of unread logits
    var most_doubt = 0.0;
    var has_moved = false;
    for (var i = 0u; i < num_read; i++) {
        let matters = is_complete || logit[i] + doubt[i] >= lowest;
        most_doubt = max(most_doubt, select(0.0, doubt[i], matters));
        has_moved = has_moved || doubt[i] > 0.0;
    }
    var size = num_read;
    while has_moved && !is_complete && size > 0u && logit[ranked[max(size, 1u) - 1u]] - most_doubt <= lowest {
        size -= 1u;
    }
    var gained = vec2<f32>(0.0, 0.0);
    for (var rank = 0u; rank < num_read; rank++) {
        if is_biased[ranked[rank]] == 1u {
            let error = error_of_exp(mass[rank], scaled[rank]) + mass[rank] * 2.5 * (doubt[ranked[rank]] + most_doubt);
            gained += vec2<f32>(mass[rank], error);
        }
    }
    gained.y = error_of_sum(gained.x, gained.y, num_read);
    let ceiling = lowest - logit[ranked[0]] + 2.0 * most_doubt;
    return RankedRow(num_read, size, most_doubt, ceiling, bound_total(row, lost, gained, most_doubt));
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

struct CertainMass {
    first: Bounds, // of the tokens that top_k keeps
    all: Bounds,
}

// Return bounds of the mass of the tokens with a certain rank.
fn bound_certain(ranks: RankedRow, top_k: u32) -> CertainMass {
    var sum = 0.0;
    var errors = 0.0;
    var first = Bounds(0.0, 0.0);
    var all = Bounds(0.0, 0.0);
    for (var i = 0u; i < ranks.size; i++) {
        sum += mass[i];
        errors += error_of_exp(mass[i], scaled[i]) + mass[i] * 2.5 * ranks.most_doubt;
        let error = error_of_sum(sum, errors, i + 1u);
        all = Bounds(sum - error, sum + error);
        if i < top_k {
            first = all;
        }
    }
    return CertainMass(first, all);
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

// Return the least and the greatest possible number of kept tokens. A number greater than `ranks.size` includes some of
// the tokens after those with a certain rank.
fn count_kept(ranks: RankedRow, draw: Draw, cut: Bounds) -> Counts {
    var by_mass = Counts(1u, 1u);
    var by_chance = Counts(0u, 0u);
    var sum = 0.0;
    var errors = 0.0;
    for (var i = 0u; i < ranks.size; i++) {
        sum += mass[i];
        errors += error_of_exp(mass[i], scaled[i]) + mass[i] * 2.5 * ranks.most_doubt;
        let error = error_of_sum(sum, errors, i);
        by_mass.fewest += u32(sum + error <= cut.least);
        by_mass.greatest += u32(sum - error <= cut.most);
        let error_of_chance = 2.0 * ranks.most_doubt + 4.0 * ULP * abs(scaled[i]);
        by_chance.fewest += u32(scaled[i] - error_of_chance > draw.least_scaled);
        by_chance.greatest += u32(scaled[i] + error_of_chance >= draw.least_scaled);
    }
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

// Return the rank of the token that is drawn, or NONE.
fn draw_rank(row: u32, draw: Draw, lost: vec2<f32>, num_read: u32) -> u32 {
    let ranks = describe_row(row, lost, num_read);
    let size = ranks.size;
    let moved = readout[row].logits[0] - logit[ranked[0]];
    if size == 0u || moved > FARTHEST || ranks.most_doubt > MOST_DOUBT * min(draw.temperature, 1.0) {
        return NONE;
    }
    let masses = bound_certain(ranks, draw.top_k);
    let certain = masses.all;
    let num_rest = min(VOCAB - size, draw.top_k - min(draw.top_k, size)); // uncertain tokens that top_k keeps
    let rest = bound_rest(ranks, certain, num_rest);
    let cut = bound_cut(ranks, draw, masses.first, rest);
    let counts = count_kept(ranks, draw, cut);
    if counts.greatest == 1u {
        return select(NONE, 0u, stands_apart(ranks, 0u));
    }

    let error_of_weight = 2.5 * ranks.most_doubt / draw.temperature;
    var kept = Bounds(0.0, 0.0); // the weight of the kept tokens
    var sum = 0.0;
    var errors = 0.0;
    for (var i = 0u; i < size; i++) {
        sum += weight[i];
        errors += error_of_exp(weight[i], scaled[i] / draw.temperature) + weight[i] * error_of_weight;
        let error = error_of_sum(sum, errors, i);
        if i + 1u == min(counts.fewest, size) {
            kept.least = sum - error;
        }
        if i + 1u == min(counts.greatest, size) {
            kept.most = sum + error;
        }
    }
    if counts.greatest > size {
        if draw.least_scaled > -UNLIMITED {
            return NONE;
        }
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
    var before = 0.0; // an upper bound of the weight of all tokens before this one
    sum = 0.0;
    errors = 0.0;
    for (var i = 0u; i < size; i++) {
        sum += weight[i];
        errors += error_of_exp(weight[i], scaled[i] / draw.temperature) + weight[i] * error_of_weight;
        let error = error_of_sum(sum, errors, i);
        if sum - error > place.most {
            return select(NONE, i, before <= place.least && stands_apart(ranks, i));
        }
        before = sum + error;
    }
    return NONE;
}
