// Sum four values over the threads of a workgroup. Every thread gets the sums.

var<workgroup> partial: array<vec4<f32>, THREADS>;

fn sum_over_workgroup(values: vec4<f32>, thread: u32) -> vec4<f32> {
    workgroupBarrier();
    partial[thread] = values;
    workgroupBarrier();
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        if thread < half {
            partial[thread] += partial[thread + half];
        }
        workgroupBarrier();
    }
    return partial[0];
}
