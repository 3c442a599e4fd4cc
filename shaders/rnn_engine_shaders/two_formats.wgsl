// Rows of a matmul from FLOATS_FROM on are in f16, or f32 if WIDE, and those before them in the format of WEIGHTS. So
// matrices in blocks, and adapters that are not quantised, take one dispatch.

#include halves
@group(0) @binding(8) var<storage, read> floats: array<vec4<u32>>;

fn load_any_weights(in_floats: bool, row: u32, eight: u32) -> Eight {
    let block = row + eight * PANEL;
    if in_floats && WIDE {
        return Eight(bitcast<vec4<f32>>(floats[2u * block]), bitcast<vec4<f32>>(floats[2u * block + 1u]));
    }
    if in_floats {
        return unpack_halves(floats[block]);
    }
    return load_weights(row, eight);
}

// Each call has a constant for `in_floats`, so that compilers leave no branch within the loop over columns.
fn sum_rows(place: Place, own: Own, sums: ptr<function, Sums>) {
    if place.segment.first_row < FLOATS_FROM {
        sum_columns(place, own, false, sums);
    } else {
        sum_columns(place, own, true, sums);
    }
}
