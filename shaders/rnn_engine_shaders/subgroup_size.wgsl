// Write the number of lanes of a subgroup of this device, or 0 if lanes are not numbered in the order of the threads.

@group(0) @binding(0) var<storage, read_write> size: array<u32>;

@compute @workgroup_size(THREADS)
fn main(
    @builtin(local_invocation_index) thread: u32,
    @builtin(subgroup_invocation_id) lane: u32,
    @builtin(subgroup_size) lanes: u32,
) {
    if thread + 1u == THREADS {
        size[0] = select(0u, lanes, lane == thread % lanes);
    }
}
