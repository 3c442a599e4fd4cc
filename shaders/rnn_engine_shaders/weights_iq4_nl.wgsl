// Weights as indices of levels, times the scale of their block. A block is 32 weights.

const PART_EIGHTS = 4u;
const OFFSET = 0.0;

#include block_scales
#include levels_iq4
#include codebook4
