// Load the inputs of eight columns, one by each lane. Only for SPLITS == 1.

#include broadcast

// Return the number of the first eight columns that a thread takes. It does not depend on the thread: all lanes must
// reach a broadcast together, and compilers check this for the loop that begins at this number.
fn first_eight(split: u32) -> u32 {
    return 0u;
}

fn share_inputs(own_index: u32) {}

fn load_input(token: u32, index: u32, lane: u32) -> Eight {
    return broadcast_eight(inputs[index + lane / 4u][lane % 4u]);
}
