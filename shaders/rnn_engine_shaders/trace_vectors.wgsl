// A recurrence whose backward pass needs some of its vectors, and the state before the first token.

const KEEPS_STATE = false;

@group(0) @binding(7) var<storage, read_write> traced: array<Traced>; // see traced_planes.wgsl

fn trace(plane: u32, place: u32, value: Traced) {
    traced[plane * PLANE + place] = value;
}
