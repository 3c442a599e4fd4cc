// Load eight consecutive numbers of a head's vector, one by each lane.

#include broadcast

fn load_eight(vector: u32, index: u32, thread: u32) -> Eight {
    return broadcast_eight(head[vector * HEAD_THREADS + 8u * index + thread % 8u]);
}
