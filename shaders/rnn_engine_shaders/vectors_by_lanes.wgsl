// The vectors of a head of size 64 that 16 threads share: each of eight lanes loads two fours of a vector, and all lanes
// get them by broadcast. The conditions of broadcast.wgsl hold here too.

#include eight
#include broadcast

const LANES = 8u;
const HEAD_THREADS = HEAD_SIZE / 4u;
const QUADS = 16u; // fours of a head's vector

alias Own = array<vec4<f32>, 2>;        // the numbers of a vector that a lane loads
alias Whole = array<vec4<f32>, QUADS>;  // all of them

fn whole(own: Own) -> Whole {
    return Whole(
        subgroupBroadcast(own[0], 0u), subgroupBroadcast(own[1], 0u),
        subgroupBroadcast(own[0], 1u), subgroupBroadcast(own[1], 1u),
        subgroupBroadcast(own[0], 2u), subgroupBroadcast(own[1], 2u),
        subgroupBroadcast(own[0], 3u), subgroupBroadcast(own[1], 3u),
        subgroupBroadcast(own[0], 4u), subgroupBroadcast(own[1], 4u),
        subgroupBroadcast(own[0], 5u), subgroupBroadcast(own[1], 5u),
        subgroupBroadcast(own[0], 6u), subgroupBroadcast(own[1], 6u),
        subgroupBroadcast(own[0], 7u), subgroupBroadcast(own[1], 7u),
    );
}

fn sum_of_four(four: vec4<f32>) -> f32 {
    return four.x + four.y + four.z + four.w;
}
