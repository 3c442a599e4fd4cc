// Return the greatest value of the threads of a workgroup to every thread. Needs sum_over_workgroup.

fn max_over_workgroup(value: f32, thread: u32) -> f32 {
    workgroupBarrier();
    partial[thread] = value;
    workgroupBarrier();
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        if thread < half {
            partial[thread] = max(partial[thread], partial[thread + half]);
        }
        workgroupBarrier();
    }
    return partial[0];
}
