// All matrices of a matmul are in the format of WEIGHTS.

fn load_any_weights(in_floats: bool, row: u32, eight: u32) -> Eight {
    return load_weights(row, eight);
}

fn sum_rows(place: Place, own: Own, sums: ptr<function, Sums>) {
    sum_columns(place, own, false, sums);
}
