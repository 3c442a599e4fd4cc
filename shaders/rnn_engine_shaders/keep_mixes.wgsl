// Store all mixes of the token, as norm_shift.wgsl does, for dispatches that follow the matmul.

@group(0) @binding(9) var<storage, read_write> mixes: array<f32>; // [MIXES (+ 1 if KEEPS_DIFFERENCE), MAX_TOKENS, WIDTH]

const PLANES = MIXES + u32(KEEPS_DIFFERENCE);
const LEAST_WORKGROUPS = 64u / ROWS; // that any matmul has: see segments.wgsl

// The first workgroups divide the planes among themselves.
fn keep_mixes(workgroup: u32, thread: u32, loaded: OwnColumns, stats: vec2<f32>) {
    if workgroup >= LEAST_WORKGROUPS {
        return;
    }
    for (var plane = workgroup; plane < PLANES; plane += LEAST_WORKGROUPS) {
        var own_mix: array<f32, PARTS>; // all before the first is used
        for (var p = 0u; p < PARTS; p++) {
            let d = thread + p * THREADS;
            own_mix[p] = vectors[MIX + min(plane, MIXES - 1u) * WIDTH + select(min(d, WIDTH - 1u), d, FULL)];
        }
        for (var p = 0u; p < PARTS; p++) {
            let d = thread + p * THREADS;
            if FULL || d < WIDTH {
                let normed = norm_column(loaded[p], stats);
                let mixed = mix_column(normed, loaded[p].previous, own_mix[p]);
                mixes[plane * MAX_TOKENS * WIDTH + d] = select(loaded[p].previous - normed, mixed, plane < MIXES);
            }
        }
    }
}
