// The results of a step for one row of logits.

struct Readout {
    logsumexp: f32,         // of the whole row
    allowed_logsumexp: f32, // of the tokens that the mask allows
    target_logit: f32,
    num_not_finite: u32,    // logits that are infinite or NaN
    num_candidates: u32,    // K, or fewer if the mask allows fewer
    ids: array<u32, K>,     // greatest logit first, equal logits by ascending id
    logits: array<f32, K>,
}
