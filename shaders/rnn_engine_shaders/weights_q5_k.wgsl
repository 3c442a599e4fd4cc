// Weights as numbers from 0 to 31, times the scale of their part of a block, minus its minimum.

#include part_scales
#include five_bits
