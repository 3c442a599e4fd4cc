// Weights of 4 bits with a scale and an offset for every 32.

const PART_EIGHTS = 4u;

#include block_offsets
#include nibbles
