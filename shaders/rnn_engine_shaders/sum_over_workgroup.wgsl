// Sum a value over the threads of a workgroup. Every thread gets the sum.

var<workgroup> partial: array<f32, THREADS>;

fn sum_over_workgroup(value: f32, thread: u32) -> f32 {
    workgroupBarrier();
    partial[thread] = value;
    workgroupBarrier();
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        if thread < half {
            partial[thread] += partial[thread + half];
        }
        workgroupBarrier();
    }
    return partial[0];
}
