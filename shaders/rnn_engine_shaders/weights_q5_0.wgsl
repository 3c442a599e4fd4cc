// Weights as numbers from 0 to 31, minus 16, times the scale of their block. A block is 32 weights.

const PART_EIGHTS = 4u;
const OFFSET = -16.0;

#include block_scales
#include five_bits
