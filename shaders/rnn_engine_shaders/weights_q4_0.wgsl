// Weights as numbers from 0 to 15, minus 8, times the scale of their block. A block is 32 weights.

const PART_EIGHTS = 4u;
const OFFSET = -8.0;

#include block_scales
#include nibbles
