// The vectors of rows with which the threads of a head walk over a run, each with one column of the state or of its
// gradient.

#include traced_planes

const PLANE = MAX_TOKENS * WIDTH;

const OWN_DY = 0u;
const OWN_V = 1u;
const OWN_SA = 2u;
const OWN_DSA = 3u;
const HEAD_VECTORS = 4u;

#include head
#include kept_gradients

// Hand the rows of the thread's number to all threads of the head. A barrier has to follow.
fn share_rows(row: u32, place: u32) {
    set_vector(OWN_DY, row, traced[D_Y * PLANE + place]);
    set_vector(OWN_V, row, traced[V * PLANE + place]);
    if REMOVES_KEYS {
        set_vector(OWN_SA, row, traced[TRACED_SA * PLANE + place]);
        set_vector(OWN_DSA, row, traced[D_SA * PLANE + place]);
    }
}
