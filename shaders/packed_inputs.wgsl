// Inputs as quantise_inputs.wgsl leaves them: blocks of 32 columns of a token, an eight of bytes in a pair of words.
// The pair behind a block's bytes has, as the bits of f32, their scale and the sum of the inputs that they stand for.

const BLOCK_EIGHTS = 4u;
const BLOCK_PAIRS = 5u;

@group(0) @binding(4) var<storage, read> inputs: array<vec2<u32>>;
