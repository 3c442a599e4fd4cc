// Every thread loads the eight inputs of eight columns itself.

fn load_input(index: u32, lane: u32) -> Eight {
    return Eight(inputs[index], inputs[index + 1u]);
}
