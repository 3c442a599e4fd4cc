// Levels that are chosen bit by bit: software devices are slow at indexing any array but a buffer.

#include nibbles_by_shifts

fn prepare_weights(thread: u32) {}

fn four_levels(numbers: vec4<i32>) -> vec4<f32> {
    let is_odd = (numbers & vec4<i32>(1)) != vec4<i32>(0);
    let has_two = (numbers & vec4<i32>(2)) != vec4<i32>(0);
    let has_four = (numbers & vec4<i32>(4)) != vec4<i32>(0);
    let has_eight = (numbers & vec4<i32>(8)) != vec4<i32>(0);
    let two_0 = select(vec4<f32>(LEVELS[0]), vec4<f32>(LEVELS[1]), is_odd);
    let two_2 = select(vec4<f32>(LEVELS[2]), vec4<f32>(LEVELS[3]), is_odd);
    let two_4 = select(vec4<f32>(LEVELS[4]), vec4<f32>(LEVELS[5]), is_odd);
    let two_6 = select(vec4<f32>(LEVELS[6]), vec4<f32>(LEVELS[7]), is_odd);
    let two_8 = select(vec4<f32>(LEVELS[8]), vec4<f32>(LEVELS[9]), is_odd);
    let two_10 = select(vec4<f32>(LEVELS[10]), vec4<f32>(LEVELS[11]), is_odd);
    let two_12 = select(vec4<f32>(LEVELS[12]), vec4<f32>(LEVELS[13]), is_odd);
    let two_14 = select(vec4<f32>(LEVELS[14]), vec4<f32>(LEVELS[15]), is_odd);
    let four_0 = select(two_0, two_2, has_two);
    let four_4 = select(two_4, two_6, has_two);
    let four_8 = select(two_8, two_10, has_two);
    let four_12 = select(two_12, two_14, has_two);
    let eight_0 = select(four_0, four_4, has_four);
    let eight_8 = select(four_8, four_12, has_four);
    return select(eight_0, eight_8, has_eight);
}

// Return the levels of the eight indices of a word.
fn eight_levels(word: u32) -> Eight {
    return Eight(four_levels(first_nibbles(word)), four_levels(first_nibbles(word >> 16u)));
}
