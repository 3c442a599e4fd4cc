// The backward pass of the time mix of RWKV-5 and RWKV-6 from its output to y: gate, group norm and bonus of a head, in
// wkv5.wgsl's names. Also writes the vectors of the recurrence that its backward pass reads.
// One workgroup per head and token.

#include batch
@group(0) @binding(0) var<storage, read> batch: Batch;
@group(0) @binding(1) var<storage, read> vectors: array<f32>;   // the layer's vectors, packed
@group(0) @binding(2) var<storage, read> projected: array<f32>; // r, k, v and, if HAS_GATE, g: [4, MAX_TOKENS, WIDTH]
@group(0) @binding(3) var<storage, read_write> traced: array<f32>;      // see traced_planes.wgsl
@group(0) @binding(4) var<storage, read_write> d_projected: array<f32>; // dg, and the bonus's part of dv

#include traced_planes
#include four_sums_over_workgroup

const PLANE = MAX_TOKENS * WIDTH;

// Return the factor by which the group norm is multiplied.
fn gate_at(place: u32) -> f32 {
    if HAS_GATE {
        let gate = projected[3u * PLANE + place];
        return gate / (1.0 + exp(-gate));
    }
    return 1.0;
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let start = group.x * HEAD_SIZE;
    let end = start + HEAD_SIZE;
    let token = group.y * WIDTH;

    var own = vec4<f32>(); // y, r * u * k, the gradient of the normalised y, and v
    for (var channel = start + thread; channel < end; channel += THREADS) {
        let place = token + channel;
        let bonus = projected[place] * vectors[U + channel] * projected[PLANE + place];
        let gradient = traced[D_Y * PLANE + place] * gate_at(place) * vectors[GROUP_NORM_WEIGHT + channel];
        own += vec4<f32>(traced[TRACED_Y * PLANE + place], bonus, gradient, projected[2u * PLANE + place]);
    }
    let sums = sum_over_workgroup(own, thread);
    let mean = sums.x / f32(HEAD_SIZE);
    let mean_gradient = sums.z / f32(HEAD_SIZE);

    own = vec4<f32>(); // with y - mean: its squares, its products with the gradient and with v; and gradient * v
    for (var channel = start + thread; channel < end; channel += THREADS) {
        let place = token + channel;
        let deviation = traced[TRACED_Y * PLANE + place] - mean;
        let gradient = traced[D_Y * PLANE + place] * gate_at(place) * vectors[GROUP_NORM_WEIGHT + channel];
        let v = projected[2u * PLANE + place];
        own += vec4<f32>(deviation * deviation, gradient * deviation, v * deviation, gradient * v);
    }
    let products = sum_over_workgroup(own, thread);
    let norm = inverseSqrt(products.x / f32(HEAD_SIZE) + EPSILON);
    let slope = products.y / f32(HEAD_SIZE) * norm * norm; // of dy over y - mean

    for (var channel = start + thread; channel < end; channel += THREADS) {
        let place = token + channel;
        let gradient = traced[D_Y * PLANE + place];
        let deviation = traced[TRACED_Y * PLANE + place] - mean;
        let weight = vectors[GROUP_NORM_WEIGHT + channel];
        if HAS_GATE {
            let gate = projected[3u * PLANE + place];
            let sigmoid = 1.0 / (1.0 + exp(-gate));
            let normed = deviation * norm * weight + vectors[GROUP_NORM_BIAS + channel];
            d_projected[3u * PLANE + place] = gradient * normed * sigmoid * (1.0 + gate * (1.0 - sigmoid));
        }
        let dy = (gradient * gate_at(place) * weight - mean_gradient - deviation * slope) * norm;
        traced[D_Y * PLANE + place] = dy;
        traced[V * PLANE + place] = projected[2u * PLANE + place];
        traced[KEY * PLANE + place] = projected[PLANE + place];
        d_projected[2u * PLANE + place] = dy * sums.y;
    }
    if thread == 0u { // the sum of dy * v
        let d_bonus = (products.w - mean_gradient * sums.w - slope * products.z) * norm;
        traced[D_BONUS * PLANE + group.y * (WIDTH / HEAD_SIZE) + group.x] = d_bonus;
    }
}
