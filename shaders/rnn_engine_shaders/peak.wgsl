// Multiply and add in registers only, to measure how fast arithmetic is.
#include NUMBER

@group(0) @binding(0) var<storage, read_write> sums: array<f32>;

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let place = (group.y * groups.x + group.x) * THREADS + thread;
    // The compiler does not know the values that are read, so it can't compute the sums beforehand.
    let factor = vec4<Number>(Number(0.5 + 0.001 * sums[place]));
    let addend = vec4<Number>(Number(0.25));
    var a = factor;
    var b = factor + addend;
    var c = factor - addend;
    var d = addend;
    for (var round = 0u; round < ROUNDS; round++) {
        a = fma(a, factor, addend);
        b = fma(b, factor, addend);
        c = fma(c, factor, addend);
        d = fma(d, factor, addend);
    }
    let sum = a + b + c + d;
    sums[place] = f32(sum.x + sum.y + sum.z + sum.w);
}
