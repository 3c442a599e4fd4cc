// Weights as numbers from 0 to 31, minus 16, times the scale of their block. A block is 32 weights.

#include block_scales
#include five_bits

fn load_weights(row: u32, eight: u32) -> Eight {
    let scale = block_scale(row + eight / 4u * PANEL);
    return affine(load_numbers(row, eight, 4u), scale, -16.0 * scale);
}
