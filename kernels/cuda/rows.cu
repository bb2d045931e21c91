// Moving rows, pointwise functions, embedding. One thread an element unless stated; every output element is written.

INLINE u64 thread_number() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }

extern "C" __global__ void widen(float *out, const act *x, u64 count) {
    begin();
    u64 i = thread_number();
    if (i < count) out[i] = to_float(x[i]);
}

// Eight a thread.
extern "C" __global__ void narrow(act *out, const float *x, u64 count) {
    begin();
    u64 i = 8 * thread_number();
    if (i >= count) return;
    if (i + 8 <= count) { store_eight(out + i, load_eight(x + i)); return; }
    for (; i < count; i++) out[i] = to_act(x[i]);
}

// Rows of `units` 16-byte pieces.
extern "C" __global__ void gather_wide(uint4 *out, const uint4 *x, const u32 *rows, u32 units, u64 count) {
    begin();
    u64 i = thread_number();
    if (i < count) out[i] = x[(u64)rows[i / units] * units + i % units];
}
extern "C" __global__ void gather_narrow(u16 *out, const u16 *x, const u32 *rows, u32 units, u64 count) {
    begin();
    u64 i = thread_number();
    if (i < count) out[i] = x[(u64)rows[i / units] * units + i % units];
}
// Row numbers are distinct.
extern "C" __global__ void scatter_wide(uint4 *out, const uint4 *values, const u32 *rows, u32 units, u64 count) {
    begin();
    u64 i = thread_number();
    if (i < count) out[(u64)rows[i / units] * units + i % units] = values[i];
}
extern "C" __global__ void scatter_narrow(u16 *out, const u16 *values, const u32 *rows, u32 units, u64 count) {
    begin();
    u64 i = thread_number();
    if (i < count) out[(u64)rows[i / units] * units + i % units] = values[i];
}

extern "C" __global__ void mean_rows(act *out, const act *x, const u32 *firsts, u32 n, u32 cols, u64 count) {
    begin();
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
    begin();
    u64 i = thread_number();
    if (i >= count) return;
    const int *frame = frames + 3 * (i / window);
    u32 col = (u32)(i % window);
    int row = frame[0] + (int)(col / channels);
    bool inside = row >= frame[1] && row < frame[2];
    out[i] = inside ? x[(u64)row * channels + col % channels] : to_act(0.0f);
}

// `b` repeats after `period` elements, eight a thread. Where eights do not divide the period, `b` is read one by one.
extern "C" __global__ void add(act *out, const act *a, const act *b, u64 period, u64 count) {
    begin();
    u64 i = 8 * thread_number();
    if (i >= count) return;
    Eight x = load_some(a, i, count), y;
    if (period == count) y = load_some(b, i, count);
    else if (period % 8 == 0) y = load_eight(b + i % period);
    else for (int j = 0; j < 8; j++) y.x[j] = to_float(b[(i + j) % period]);
    for (int j = 0; j < 8; j++) x.x[j] += y.x[j];
    store_some(out, i, count, x);
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

// Eight a thread.
extern "C" __global__ void activate(act *out, const act *x, u32 f, u64 count) {
    begin();
    u64 i = 8 * thread_number();
    if (i >= count) return;
    Eight v = load_some(x, i, count);
    for (int j = 0; j < 8; j++) v.x[j] = apply(f, v.x[j]);
    store_some(out, i, count, v);
}
extern "C" __global__ void gated(act *out, const act *gate, const act *up, u32 f, u64 count) {
    begin();
    u64 i = 8 * thread_number();
    if (i >= count) return;
    Eight v = load_some(gate, i, count), w = load_some(up, i, count);
    for (int j = 0; j < 8; j++) v.x[j] = apply(f, v.x[j]) * w.x[j];
    store_some(out, i, count, v);
}

// Rows of `from` units into rows of `to` units of 2 bytes (or the other way round): padding is zero.
extern "C" __global__ void repitch(u16 *out, const u16 *x, u32 to, u32 from, u64 count) {
    begin();
    u64 i = thread_number();
    if (i >= count) return;
    u32 col = (u32)(i % to);
    out[i] = col < from ? x[i / to * from + col] : 0;
}

// Rows of a table.
extern "C" __global__ void embed(act *out, Weight table, const u32 *ids, u64 count) {
    begin();
    u64 i = thread_number();
    if (i < count) out[i] = to_act(element(table, ids[i / table.inputs], (u32)(i % table.inputs)));
}

// A whole matrix as bf16, for products that take no codes.
extern "C" __global__ void dequantise(bf16 *out, Weight w, u64 count) {
    begin();
    u64 i = thread_number();
    if (i < count) out[i] = from_float<bf16>(element(w, i / w.inputs, (u32)(i % w.inputs)));
}
