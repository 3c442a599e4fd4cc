// Weights of 4 bits with a scale and an offset for every 64.

const BLOCK_EIGHTS = 8u;

#include affine4
