// Sum a value over the threads of a workgroup. Every thread gets the sum.

var<workgroup> partial: array<f32, THREADS>;

fn sum_over_workgroup(value: f32, thread: u32) -> f32 {
    workgroupBarrier();
    partial[thread] = value;
    workgroupBarrier();
    if THREADS <= 8u { // as on software devices, which compile barriers slowly
        var sum = 0.0;
        for (var i = 0u; i < THREADS; i++) {
            sum += partial[i];
        }
        return sum;
    }
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        if thread < half {
            partial[thread] += partial[thread + half];
        }
        workgroupBarrier();
    }
    return partial[0];
}
