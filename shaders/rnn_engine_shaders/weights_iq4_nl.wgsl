// Weights as indices of levels, times the scale of their block. A block is 32 weights.

const BLOCK_EIGHTS = 4u;

#include levels_iq4
#include codebook4
