// Moving rows, pointwise functions, embedding. One thread an element unless stated; every output element is written.

INLINE u64 thread_number() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }

extern "C" __global__ void widen(float *out, const act *x, u64 count) {
    u64 i = thread_number();
    if (i < count) out[i] = to_float(x[i]);
}

// Rows of `units` 16-byte pieces.
extern "C" __global__ void gather_wide(uint4 *out, const uint4 *x, const u32 *rows, u32 units, u64 count) {
    u64 i = thread_number();
    if (i < count) out[i] = x[(u64)rows[i / units] * units + i % units];
}
extern "C" __global__ void gather_narrow(u16 *out, const u16 *x, const u32 *rows, u32 units, u64 count) {
    u64 i = thread_number();
    if (i < count) out[i] = x[(u64)rows[i / units] * units + i % units];
}
// Row numbers are distinct.
extern "C" __global__ void scatter_wide(uint4 *out, const uint4 *values, const u32 *rows, u32 units, u64 count) {
    u64 i = thread_number();
    if (i < count) out[(u64)rows[i / units] * units + i % units] = values[i];
}
extern "C" __global__ void scatter_narrow(u16 *out, const u16 *values, const u32 *rows, u32 units, u64 count) {
    u64 i = thread_number();
    if (i < count) out[(u64)rows[i / units] * units + i % units] = values[i];
}

extern "C" __global__ void mean_rows(act *out, const act *x, const u32 *firsts, u32 n, u32 cols, u64 count) {
    u64 i = thread_number();
    if (i >= count) return;
    const act *from = x + (u64)firsts[i / cols] * cols + i % cols;
    float sum = 0.0f;
    for (u32 r = 0; r < n; r++) sum += to_float(from[(u64)r * cols]);
    out[i] = to_act(sum / (float)n);
}

// The window of each output frame as one row of `kernel * channels`. A frame: first input row (may lie before the
// segment), segment start and end.
extern "C" __global__ void unroll(act *out, const act *x, const int *frames, u32 channels, u32 window, u64 count) {
    u64 i = thread_number();
    if (i >= count) return;
    const int *frame = frames + 3 * (i / window);
    u32 col = (u32)(i % window);
    int row = frame[0] + (int)(col / channels);
    bool inside = row >= frame[1] && row < frame[2];
    out[i] = inside ? x[(u64)row * channels + col % channels] : to_act(0.0f);
}

// `b` repeats after `period` elements.
extern "C" __global__ void add(act *out, const act *a, const act *b, u64 period, u64 count) {
    u64 i = thread_number();
    if (i < count) out[i] = to_act(to_float(a[i]) + to_float(b[i % period]));
}

enum Function { SILU = 0, GELU = 1, GELU_TANH = 2, QUICK_GELU = 3, RELU = 4 };

INLINE float apply(u32 f, float x) {
    switch (f) {
        case SILU: return x / (1.0f + expf(-x));
        case GELU: return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
        case GELU_TANH: return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
        case QUICK_GELU: return x / (1.0f + expf(-1.702f * x));
        default: return fmaxf(x, 0.0f);
    }
}

extern "C" __global__ void activate(act *out, const act *x, u32 f, u64 count) {
    u64 i = thread_number();
    if (i < count) out[i] = to_act(apply(f, to_float(x[i])));
}
extern "C" __global__ void gated(act *out, const act *gate, const act *up, u32 f, u64 count) {
    u64 i = thread_number();
    if (i < count) out[i] = to_act(apply(f, to_float(gate[i])) * to_float(up[i]));
}

// Rows of a table.
extern "C" __global__ void embed(act *out, Weight table, const u32 *ids, u64 count) {
    u64 i = thread_number();
    if (i < count) out[i] = to_act(element(table, ids[i / table.inputs], (u32)(i % table.inputs)));
}

// A whole matrix as bf16, for products that take no codes.
extern "C" __global__ void dequantise(bf16 *out, Weight w, u64 count) {
    u64 i = thread_number();
    if (i < count) out[i] = from_float<bf16>(element(w, i / w.inputs, (u32)(i % w.inputs)));
}
