// Weights as indices of levels. The levels are quantiles of Student's t distribution with 5 degrees of freedom.

const LEVELS = array<f32, 16>(
    -1.0, -0.62778056, -0.454736, -0.33433074, -0.23743437, -0.15289871, -0.07498246, 0.0,
    0.06551307, 0.13296473, 0.20466101, 0.2838347, 0.37580484, 0.49107558, 0.65678114, 1.0,
);

const PART_EIGHTS = 8u;
const OFFSET = 0.0;

#include block_scales
#include codebook4
