// Inputs as quantise_inputs.wgsl writes them: blocks of 32 columns of a token, with eight bytes in a pair of words.
// The pair after a block's bytes holds two f32 as bits: the scale of the bytes, and the sum of the inputs that they
// represent.

const INPUT_EIGHTS = 4u;
const BLOCK_PAIRS = 5u;

@group(0) @binding(4) var<storage, read> inputs: array<vec2<u32>>;
