// Quantise the inputs of matmuls to bytes: blocks of 32 columns of a token, each with a scale of its own.
// Workgroups: (ceil(blocks of a token / THREADS), T). Each thread quantises one block.

const BLOCK_FOURS = 8u; // fours of floats of a block
const BLOCK_PAIRS = 5u; // pairs of a block in `packed`: 32 bytes, their scale, and the sum of the inputs they represent
const NOT_A_NUMBER = 0x7fc00000u;

// The place of one vector of each token.
struct Source {
    start: u32,       // index of the first token's first float in `inputs`
    stride: u32,      // floats from one token's to the next
    num_eights: u32,  // eights of columns, rounded up
    first_block: u32, // among the blocks of a token
}

struct Sources {
    counts_rows: u32, // as in struct MatMul of segments.wgsl
    num_sources: u32,
    num_blocks: u32, // of a token
    unused: u32,
    sources: array<Source>,
}

@group(0) @binding(0) var<storage, read> sources: Sources;
@group(0) @binding(1) var<storage, read> inputs: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> packed: array<vec2<u32>>; // [T, blocks of a token, 5]

fn find_source(block: u32) -> Source {
    var index = sources.num_sources - 1u;
    while sources.sources[index].first_block > block {
        index -= 1u;
    }
    return sources.sources[index];
}

@compute @workgroup_size(THREADS)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let block = id.x;
    let token = id.y;
    if block >= sources.num_blocks {
        return;
    }
    let source = find_source(block);
    let first_four = (block - source.first_block) * BLOCK_FOURS;
    let start = (source.start + token * source.stride) / 4u + first_four;
    let num_fours = min(BLOCK_FOURS, 2u * source.num_eights - first_four); // those after these are another token's

    var fours: array<vec4<f32>, BLOCK_FOURS>;
    var greatest = 0.0;
    var is_finite = true;
    for (var i = 0u; i < BLOCK_FOURS; i++) {
        if i < num_fours {
            fours[i] = inputs[start + i];
        }
        let sizes = abs(fours[i]);
        greatest = max(greatest, max(max(sizes.x, sizes.y), max(sizes.z, sizes.w)));
        is_finite &= all((bitcast<vec4<u32>>(fours[i]) & vec4<u32>(0x7f800000u)) < vec4<u32>(0x7f800000u));
    }
    let is_tiny = greatest < 1e-30; // such a block counts as zeros, since its inverse scale would be infinite
    let scale = select(greatest * (1.0 / 127.0), 0.0, is_tiny);
    let inverse = select(127.0 / greatest, 0.0, is_tiny);
    var words: array<u32, BLOCK_FOURS>;
    var sum = 0;
    for (var i = 0u; i < BLOCK_FOURS; i++) {
        words[i] = pack4xI8(vec4<i32>(clamp(round(fours[i] * inverse), vec4<f32>(-127.0), vec4<f32>(127.0))));
        sum += dot4I8Packed(words[i], 0x01010101u);
    }
    let place = (token * sources.num_blocks + block) * BLOCK_PAIRS;
    for (var i = 0u; i < BLOCK_FOURS / 2u; i++) {
        packed[place + i] = vec2<u32>(words[2u * i], words[2u * i + 1u]);
    }
    let scale_bits = select(NOT_A_NUMBER, bitcast<u32>(scale), is_finite);
    packed[place + BLOCK_PAIRS - 1u] = vec2<u32>(scale_bits, bitcast<u32>(scale * f32(sum)));
}
