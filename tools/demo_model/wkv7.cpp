// The RWKV-7 recurrence of one layer and its gradient, for the CPU.
//
// Per head, with S[value, key]:   S_t = S_{t-1} diag(w_t) + (S_{t-1} a_t) b_t^T + v_t k_t^T,   y_t = S_t r_t.
// If starts[b, t] is set, S_{t-1} is the initial state instead: documents packed into one row do not see each other.
// The forward pass keeps S at every CHUNK-th position; the backward pass recomputes the states between them.

#include <torch/extension.h>

#include <vector>

namespace {

constexpr int64_t CHUNK = 16;

struct Inputs {
    const float *r, *w, *k, *v, *a, *b;  // [B, T, H, N]
    const uint8_t* starts;               // [B, T]
    const float* initial;                // [B, H, N, N]
    int64_t num_tokens, num_heads;
};

template <int N>
using Matrix = float[N][N];

template <int N>
void copy(float* target, const float* source) {
    for (int i = 0; i < N * N; i++) target[i] = source[i];
}

template <int N>
float dot(const float* x, const float* y) {
    float sum = 0;
    for (int j = 0; j < N; j++) sum += x[j] * y[j];
    return sum;
}

// Compute next = S_t from previous = S_{t-1}. The two may be the same memory.
template <int N>
void advance(const Inputs& in, int64_t at, const Matrix<N>& previous, Matrix<N>& next) {
    const float *w = in.w + at, *k = in.k + at, *v = in.v + at, *a = in.a + at, *b = in.b + at;
    for (int i = 0; i < N; i++) {
        const float sa = dot<N>(previous[i], a);
        for (int j = 0; j < N; j++) next[i][j] = previous[i][j] * w[j] + sa * b[j] + v[i] * k[j];
    }
}

template <int N>
void forward_head(const Inputs& in, int64_t row, int64_t head, float* y, float* kept, float* last) {
    alignas(64) Matrix<N> state;
    const float* initial = in.initial + (row * in.num_heads + head) * N * N;
    copy<N>(&state[0][0], initial);
    for (int64_t t = 0; t < in.num_tokens; t++) {
        if (t % CHUNK == 0) copy<N>(kept + t / CHUNK * N * N, &state[0][0]);
        if (in.starts[row * in.num_tokens + t]) copy<N>(&state[0][0], initial);
        const int64_t at = ((row * in.num_tokens + t) * in.num_heads + head) * N;
        advance<N>(in, at, state, state);
        for (int i = 0; i < N; i++) y[at + i] = dot<N>(state[i], in.r + at);
    }
    copy<N>(last, &state[0][0]);
}

struct Gradients {
    float *r, *w, *k, *v, *a, *b;  // [B, T, H, N]
};

// The gradient of one token. `flow` is dL/dS_t on entry and dL/dS_{t-1} on return.
template <int N>
void backward_token(const Inputs& in, const Gradients& out, int64_t at, const float* dy, const Matrix<N>& previous,
                    const Matrix<N>& next, Matrix<N>& flow) {
    const float *r = in.r + at, *w = in.w + at, *k = in.k + at, *v = in.v + at, *a = in.a + at, *b = in.b + at;
    alignas(64) float dr[N] = {}, dw[N] = {}, dk[N] = {}, da[N] = {}, db[N] = {};
    for (int i = 0; i < N; i++) {
        const float sa = dot<N>(previous[i], a);
        float dsa = 0, dv = 0;
        for (int j = 0; j < N; j++) {
            const float f = flow[i][j] + dy[at + i] * r[j];
            flow[i][j] = f;
            dr[j] += dy[at + i] * next[i][j];
            dw[j] += f * previous[i][j];
            db[j] += f * sa;
            dk[j] += f * v[i];
            dsa += f * b[j];
            dv += f * k[j];
        }
        out.v[at + i] = dv;
        for (int j = 0; j < N; j++) {
            da[j] += dsa * previous[i][j];
            flow[i][j] = flow[i][j] * w[j] + dsa * a[j];
        }
    }
    for (int j = 0; j < N; j++) {
        out.r[at + j] = dr[j];
        out.w[at + j] = dw[j];
        out.k[at + j] = dk[j];
        out.a[at + j] = da[j];
        out.b[at + j] = db[j];
    }
}

template <int N>
void backward_head(const Inputs& in, const Gradients& out, int64_t row, int64_t head, const float* dy,
                   const float* kept, const float* dlast, float* dinitial) {
    alignas(64) Matrix<N> before[CHUNK], after[CHUNK];
    alignas(64) Matrix<N> flow;
    copy<N>(&flow[0][0], dlast);
    const float* initial = in.initial + (row * in.num_heads + head) * N * N;
    for (int64_t first = (in.num_tokens - 1) / CHUNK * CHUNK; first >= 0; first -= CHUNK) {
        const int64_t length = std::min(CHUNK, in.num_tokens - first);
        for (int64_t c = 0; c < length; c++) {
            const int64_t token = row * in.num_tokens + first + c;
            const float* held = c ? &after[c - 1][0][0] : kept + first / CHUNK * N * N;
            copy<N>(&before[c][0][0], in.starts[token] ? initial : held);
            advance<N>(in, (token * in.num_heads + head) * N, before[c], after[c]);
        }
        for (int64_t c = length - 1; c >= 0; c--) {
            const int64_t token = row * in.num_tokens + first + c;
            backward_token<N>(in, out, (token * in.num_heads + head) * N, dy, before[c], after[c], flow);
            if (!in.starts[token]) continue;
            for (int i = 0; i < N * N; i++) {
                dinitial[i] += (&flow[0][0])[i];
                (&flow[0][0])[i] = 0;
            }
        }
    }
    for (int i = 0; i < N * N; i++) dinitial[i] += (&flow[0][0])[i];
}

Inputs inputs_of(const std::vector<torch::Tensor>& x, const torch::Tensor& starts, const torch::Tensor& initial) {
    for (const auto& t : x) TORCH_CHECK(t.is_contiguous() && t.dtype() == torch::kFloat32, "f32 [B, T, H, N] expected");
    TORCH_CHECK(starts.is_contiguous() && initial.is_contiguous(), "contiguous tensors expected");
    auto f = [&](int i) { return x[i].data_ptr<float>(); };
    return {f(0), f(1), f(2), f(3), f(4), f(5), starts.data_ptr<uint8_t>(), initial.data_ptr<float>(), x[0].size(1),
            x[0].size(2)};
}

template <int N>
void run_forward(const Inputs& in, int64_t rows, float* y, float* kept, float* last) {
    const int64_t chunks = (in.num_tokens + CHUNK - 1) / CHUNK;
#pragma omp parallel for schedule(dynamic)
    for (int64_t task = 0; task < rows * in.num_heads; task++)
        forward_head<N>(in, task / in.num_heads, task % in.num_heads, y, kept + task * chunks * N * N,
                        last + task * N * N);
}

template <int N>
void run_backward(const Inputs& in, const Gradients& out, int64_t rows, const float* dy, const float* kept,
                  const float* dlast, float* dinitial) {
    const int64_t chunks = (in.num_tokens + CHUNK - 1) / CHUNK;
#pragma omp parallel for schedule(dynamic)
    for (int64_t task = 0; task < rows * in.num_heads; task++)
        backward_head<N>(in, out, task / in.num_heads, task % in.num_heads, dy, kept + task * chunks * N * N,
                         dlast + task * N * N, dinitial + task * N * N);
}

}  // namespace

// x: r, w, k, v, a, b, each [B, T, H, N]; initial [B, H, N, N]. Returns y [B, T, H, N], the kept states
// [B, H, chunks, N, N], and the last ones [B, H, N, N].
std::vector<torch::Tensor> forward(std::vector<torch::Tensor> x, torch::Tensor starts, torch::Tensor initial) {
    const Inputs in = inputs_of(x, starts, initial);
    const int64_t rows = x[0].size(0), n = x[0].size(3), chunks = (in.num_tokens + CHUNK - 1) / CHUNK;
    auto y = torch::empty_like(x[0]);
    auto kept = torch::empty({rows, in.num_heads, chunks, n, n}, x[0].options());
    auto last = torch::empty_like(initial);
    TORCH_CHECK(n == 16 || n == 32 || n == 64, "head size 16, 32 or 64 expected, not ", n);
    auto run = n == 16 ? run_forward<16> : n == 32 ? run_forward<32> : run_forward<64>;
    run(in, rows, y.data_ptr<float>(), kept.data_ptr<float>(), last.data_ptr<float>());
    return {y, kept, last};
}

// Returns the gradients of r, w, k, v, a, b and of the initial states, from those of y and of the last states.
std::vector<torch::Tensor> backward(std::vector<torch::Tensor> x, torch::Tensor starts, torch::Tensor initial,
                                    torch::Tensor kept, torch::Tensor dy, torch::Tensor dlast) {
    const Inputs in = inputs_of(x, starts, initial);
    const int64_t rows = x[0].size(0), n = x[0].size(3);
    std::vector<torch::Tensor> g;
    for (const auto& t : x) g.push_back(torch::empty_like(t));
    auto dinitial = torch::zeros_like(initial);
    auto f = [&](int i) { return g[i].data_ptr<float>(); };
    const Gradients out{f(0), f(1), f(2), f(3), f(4), f(5)};
    auto run = n == 16 ? run_backward<16> : n == 32 ? run_backward<32> : run_backward<64>;
    run(in, out, rows, dy.data_ptr<float>(), kept.data_ptr<float>(), dlast.data_ptr<float>(),
        dinitial.data_ptr<float>());
    g.push_back(dinitial);
    return g;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("forward", &forward);
    m.def("backward", &backward);
}
