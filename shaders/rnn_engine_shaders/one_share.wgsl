// What shares.wgsl has, for rows of which each is a thread's own. Here lanes may share what they load, so no control flow
// depends on `is_first`.

const SHARES = 1u;
const OWN_EIGHTHS = EIGHTHS;

struct Own {
    row: u32,
    share: u32,
    first_eighth: u32,
}

fn own_of(thread: u32) -> Own {
    return Own(thread, 0u, 0u);
}

fn is_first(own: Own) -> bool {
    return true;
}

fn add_up(own: Own, parts: vec4<f32>) -> vec4<f32> {
    return parts;
}

fn add_up_one(own: Own, part: f32) -> f32 {
    return part;
}
