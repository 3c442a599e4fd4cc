// The eight inputs of eight columns, one loaded by each lane: for SPLITS == 1.

#include broadcast

// The first eight of columns that a thread takes. No thread's number is in it, since all lanes have to come to a
// broadcast together, and compilers hold the loop that begins here to that.
fn first_eight(split: u32) -> u32 {
    return 0u;
}

fn share_inputs(own_index: u32) {}

fn load_input(token: u32, index: u32, lane: u32) -> Eight {
    return broadcast_eight(inputs[index + lane / 4u][lane % 4u]);
}
