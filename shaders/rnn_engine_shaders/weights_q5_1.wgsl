// Weights as numbers from 0 to 31, times the scale of their block, plus the block's offset. A block is 32 weights.

const PART_EIGHTS = 4u;

#include block_offsets
#include five_bits
