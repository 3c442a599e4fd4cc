// A recurrence that runs for its output and for the state after it.

const KEEPS_STATE = true;

fn trace(plane: u32, place: u32, value: Traced) {}
