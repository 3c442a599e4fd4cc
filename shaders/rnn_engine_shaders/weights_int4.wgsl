// Weights of 4 bits with a scale and an offset for every 64.

const PART_EIGHTS = 8u;

#include block_offsets
#include nibbles
