// Weights as numbers from 0 to 31, times the scale of their part of a block, minus its minimum.

#include part_scales
#include five_bits

fn load_weights(row: u32, eight: u32) -> Eight {
    return scale_part(load_numbers(row, eight, 32u), row + eight / 32u * PANEL, eight / 4u % 8u);
}
