// Weights as indices of levels. The levels are quantiles of the normal distribution.

const LEVELS = array<f32, 16>(
    -1.0, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0,
    0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0,
);

const PART_EIGHTS = 8u;
const OFFSET = 0.0;

#include block_scales
#include codebook4
