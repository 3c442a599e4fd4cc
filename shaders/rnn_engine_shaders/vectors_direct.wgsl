// Load eight consecutive numbers of a head's vector: every thread loads all of them itself.

fn load_eight(vector: u32, index: u32, thread: u32) -> Eight {
    let start = vector * HEAD_THREADS + 8u * index;
    return Eight(
        vec4<f32>(head[start], head[start + 1u], head[start + 2u], head[start + 3u]),
        vec4<f32>(head[start + 4u], head[start + 5u], head[start + 6u], head[start + 7u]),
    );
}
