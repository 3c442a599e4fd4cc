// Weights as levels, chosen by indices into LEVELS, times the scale of their block. A block is BLOCK_EIGHTS times
// eight weights; a u32 holds eight indices.

#include block_scales
#include CODES

@group(0) @binding(2) var<storage, read> weights: array<u32>;

fn load_weights(row: u32, eight: u32) -> Eight {
    let block = row + eight / BLOCK_EIGHTS * PANEL;
    let word = weights[eight_index(row, eight, BLOCK_EIGHTS)];
    let scale = block_scale(block);
    let chosen = eight_levels(word);
    return Eight(scale * chosen.low, scale * chosen.high);
}
