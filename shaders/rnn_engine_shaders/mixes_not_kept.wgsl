// The normed inputs of a matmul are for this matmul only.

fn keep_mixes(workgroup: u32, thread: u32, loaded: OwnColumns, stats: vec2<f32>) {}
