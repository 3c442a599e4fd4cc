// Rows of a matmul from HALVES_FROM on are in f16, and those before them in the format of WEIGHTS. So matrices in blocks,
// and adapters that are not quantised, take one dispatch.

#include halves
@group(0) @binding(8) var<storage, read> halves: array<vec4<u32>>;

fn load_any_weights(in_halves: bool, row: u32, eight: u32) -> Eight {
    if in_halves {
        return unpack_halves(halves[row + eight * PANEL]);
    }
    return load_weights(row, eight);
}

// Each call has a constant for `in_halves`, so that compilers leave no branch within the loop over columns.
fn sum_rows(place: Place, own: Own, sums: ptr<function, Sums>) {
    if place.segment.first_row < HALVES_FROM {
        sum_columns(place, own, false, sums);
    } else {
        sum_columns(place, own, true, sums);
    }
}
