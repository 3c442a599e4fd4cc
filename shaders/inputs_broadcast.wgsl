// The eight inputs of eight columns, one loaded by each lane: for SPLITS == 1.

#include broadcast

fn load_input(index: u32, lane: u32) -> Eight {
    return broadcast_eight(inputs[index + lane / 4u][lane % 4u]);
}
