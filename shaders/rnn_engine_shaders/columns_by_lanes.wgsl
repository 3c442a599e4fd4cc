// The vectors of rows with which the threads of a head of size 64 walk over a run, each with four columns of the state
// or of its gradient.

#include traced_planes
#include vectors_by_lanes
#include kept_gradients

const EIGHTHS = HEAD_SIZE / 8u;
const PLANE = MAX_TOKENS * WIDTH / 4u; // in fours

struct Rows {
    dy: Whole,
    v: Whole,
    sa: Whole,
    d_sa: Whole,
}

fn load_rows(place: u32) -> Rows {
    var rows: Rows;
    rows.dy = load_plane(D_Y * PLANE + place);
    rows.v = load_plane(V * PLANE + place);
    if REMOVES_KEYS {
        rows.sa = load_plane(TRACED_SA * PLANE + place);
        rows.d_sa = load_plane(D_SA * PLANE + place);
    }
    return rows;
}

fn load_plane(place: u32) -> Whole {
    return whole(Own(traced[place], traced[place + 1u]));
}
