// Weights of 4 bits with a scale and an offset for every 32.

const BLOCK_EIGHTS = 4u;

#include affine4
