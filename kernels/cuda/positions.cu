// Rotary positions. Tables stay f32 whatever the activations are.

// Cosines of a row, then its sines. The angle is an f32 product, as the published models compute it.
extern "C" __global__ void rotary_table(float *out, const u32 *positions, const float *inverse, const u32 *axis,
                                        u32 axes, u32 pairs, float factor, u64 count) {
    begin();
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    u64 row = i / pairs;
    u32 pair = (u32)(i % pairs);
    float angle = (float)positions[row * axes + axis[pair]] * inverse[pair];
    out[row * 2 * pairs + pair] = cosf(angle) * factor;
    out[row * 2 * pairs + pairs + pair] = sinf(angle) * factor;
}

// Element `i` of a head at `x`, turned by the row's cosines and sines.
INLINE float turned(const act *x, const float *table, u32 i, u32 pairs) {
    float here = to_float(x[i]);
    if (i >= 2 * pairs) return here;
    u32 pair = i < pairs ? i : i - pairs;
    float cosine = table[pair], sine = table[pairs + pair];
    if (i < pairs) return here * cosine - to_float(x[i + pairs]) * sine;
    return here * cosine + to_float(x[i - pairs]) * sine;
}

// One block a row.
extern "C" __global__ void rotary(act *out, const act *x, const float *table, u32 head_dim, u32 pairs, u32 cols) {
    begin();
    u64 row = (u64)blockIdx.x * cols;
    table += (u64)blockIdx.x * 2 * pairs;
    for (u32 i = threadIdx.x; i < cols; i += blockDim.x) {
        u32 at = i % head_dim;
        out[row + i] = to_act(turned(x + row + (i - at), table, at, pairs));
    }
}

// Where a slot's head lies in the pages `[page][kv_head][slot][head_dim]`.
INLINE u64 page_at(u32 slot, u32 head, u32 page_tokens, u32 kv_heads, u32 head_dim) {
    return (((u64)(slot / page_tokens) * kv_heads + head) * page_tokens + slot % page_tokens) * head_dim;
}

extern "C" __global__ void kv_write(act *keys, act *values, const act *k, const act *v, const u32 *slots,
                                    u32 page_tokens, u32 kv_heads, u32 head_dim, u64 count) {
    begin();
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    u32 cols = kv_heads * head_dim, col = (u32)(i % cols);
    u64 to = page_at(slots[i / cols], col / head_dim, page_tokens, kv_heads, head_dim) + col % head_dim;
    keys[to] = k[i];
    values[to] = v[i];
}

// Queries turned; keys turned and written with their values into the pages: one launch of a decode step.
extern "C" __global__ void rotary_kv_write(act *out, act *keys, act *values, const act *q, const act *k, const act *v,
                                           const float *table, const u32 *slots, u32 page_tokens, u32 heads,
                                           u32 kv_heads, u32 head_dim, u32 pairs, u64 count) {
    begin();
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    u32 width = (heads + 2 * kv_heads) * head_dim;
    u64 row = i / width;
    u32 col = (u32)(i % width), at = col % head_dim, head = col / head_dim;
    const float *angles = table + row * 2 * pairs;
    if (head < heads) {
        u64 from = (row * heads + head) * head_dim;
        out[from + at] = to_act(turned(q + from, angles, at, pairs));
        return;
    }
    head -= heads;
    bool value = head >= kv_heads;
    if (value) head -= kv_heads;
    u64 from = (row * kv_heads + head) * head_dim;
    u64 to = page_at(slots[row], head, page_tokens, kv_heads, head_dim) + at;
    if (value) values[to] = v[from + at];
    else keys[to] = to_act(turned(k + from, angles, at, pairs));
}
