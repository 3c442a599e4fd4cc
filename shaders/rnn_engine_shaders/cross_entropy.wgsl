// The cross-entropy of logit rows with their targets, and its gradient in place of the logits. One workgroup per row:
//   losses[token of the row] = weight * (log(sum of exp(logits)) - logits[target])
//   logits                   = weight * (softmax(logits) - one-hot(target)),   if NEEDS_GRADIENT

#include batch
@group(0) @binding(0) var<storage, read> batch: Batch;
@group(0) @binding(1) var<storage, read> weights: array<f32>;      // [R] how much each row counts
@group(0) @binding(2) var<storage, read_write> logits: array<f32>; // [R, STRIDE], the first VOCAB of each row
@group(0) @binding(3) var<storage, read_write> losses: array<f32>; // [T]

#include sum_over_workgroup
#include max_over_workgroup

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group.x;
    let start = row * STRIDE;
    let target_place = start + batch.rows[row].target_id;
    let weight = weights[row];
    var own_greatest = logits[start];
    for (var id = thread; id < VOCAB; id += THREADS) {
        own_greatest = max(own_greatest, logits[start + id]);
    }
    let greatest = max_over_workgroup(own_greatest, thread);
    var own_sum = 0.0;
    for (var id = thread; id < VOCAB; id += THREADS) {
        own_sum += exp(logits[start + id] - greatest);
    }
    let sum = sum_over_workgroup(own_sum, thread);
    if thread == 0u {
        losses[batch.rows[row].token] = weight * (greatest - logits[target_place] + log(sum));
    }
    if NEEDS_GRADIENT {
        storageBarrier();
        for (var id = thread; id < VOCAB; id += THREADS) {
            let place = start + id;
            logits[place] = weight * (exp(logits[place] - greatest) / sum - select(0.0, 1.0, place == target_place));
        }
    }
}
