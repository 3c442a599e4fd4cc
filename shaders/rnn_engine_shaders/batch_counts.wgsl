// The beginning of the struct in batch.wgsl. It has the same name, so that a kernel can include either. A kernel with
// this one is the same for all limits of steps, so a driver that keeps compiled kernels finds it again.

struct Batch {
    num_tokens: u32,
    num_runs: u32,
    num_rows: u32,
    unused: u32,
}
