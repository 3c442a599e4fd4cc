// Philox4x32-10: four random words from a key and a counter (Salmon et al. 2011, "Parallel Random Numbers: As Easy as
// 1, 2, 3"). The same function as `philox` in rnn_engine/sampling/sequence_sampler.py.

// Return the upper word of a product.
fn multiply_high(a: u32, b: u32) -> u32 {
    let low = (a & 0xffffu) * (b & 0xffffu);
    let left = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
    let right = (a & 0xffffu) * (b >> 16u) + (left & 0xffffu);
    return (a >> 16u) * (b >> 16u) + (left >> 16u) + (right >> 16u);
}

fn philox(seed: vec2<u32>, first_counter: vec4<u32>) -> vec4<u32> {
    var key = seed;
    var counter = first_counter;
    for (var round = 0u; round < 10u; round++) {
        let high = vec2<u32>(multiply_high(counter.x, 0xd2511f53u), multiply_high(counter.z, 0xcd9e8d57u));
        let low = vec2<u32>(counter.x * 0xd2511f53u, counter.z * 0xcd9e8d57u);
        counter = vec4<u32>(high.y ^ counter.y ^ key.x, low.y, high.x ^ counter.w ^ key.y, low.x);
        key += vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
    }
    return counter;
}
