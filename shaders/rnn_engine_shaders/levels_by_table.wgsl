// Levels that are looked up in a table in workgroup memory. Its 16 words are in 16 banks, so lanes that read different
// levels do not wait for each other.

var<workgroup> levels: array<f32, 16>;

fn prepare_weights(thread: u32) {
    if thread == 0u {
        levels = LEVELS;
    }
    workgroupBarrier();
}

fn four_levels(word: u32) -> vec4<f32> {
    return vec4<f32>(levels[word & 15u], levels[(word >> 4u) & 15u], levels[(word >> 8u) & 15u], levels[(word >> 12u) & 15u]);
}

// Return the levels of the eight indices of a word.
fn eight_levels(word: u32) -> Eight {
    return Eight(four_levels(word), four_levels(word >> 16u));
}
