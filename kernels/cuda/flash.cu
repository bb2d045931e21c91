// Attention of bf16 on tensor cores with an online softmax, for head sizes up to 128 that are multiples of 8
// (Dao, "FlashAttention-2", 2023). Needs attention.cu before it.
//
// ```text
// block    64 packed rows (query token, head of one key head's group), 4 warps of 16 rows
// keys     tiles of 64 anchored at position 0, the next tile copied while the current one is used
// ```
// Rows of a tile are packed token by token, `group` heads each, so that grouped queries share the keys they load. A row
// meets the same tiles in the same order however the prompt was cut; keys beyond the context are read as zeros.

#define ROWS 64
#define KEYS 64
#define THREADS 128

INLINE void mma_bf16(float *c, const u32 *a, u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
INLINE u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }
INLINE void load_matrices(u32 *r, u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
INLINE void load_matrices_transposed(u32 *r, u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
// 16 bytes to shared memory, or zeros.
INLINE void copy_ahead(u32 to, const void *from, bool there) {
    u32 bytes = there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(from), "r"(bytes) : "memory");
}
INLINE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> INLINE void wait_copies() { asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory"); }
INLINE float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#define PITCH(D) ((D) + 8)
#define LOG2_E 1.4426950408889634f

// Keys and values of positions `first ..` (zeros from `keys` on) into shared tiles.
template <int D> INLINE void copy_tile(const Attention &a, const Span &s, u32 kv_head, u32 first, bf16 *k, bf16 *v) {
    const u32 pieces = D / 8;
    for (u32 i = threadIdx.x; i < KEYS * pieces; i += THREADS) {
        u32 key = i / pieces, piece = i % pieces, position = first + key;
        bool there = position < s.keys && piece * 8 < a.head_dim;
        u64 from = there ? key_at(a, s, position, kv_head) + piece * 8 : 0;
        u32 at = (key * PITCH(D) + piece * 8) * 2;
        copy_ahead(shared_address(k) + at, a.k + from, there);
        copy_ahead(shared_address(v) + at, a.v + from, there);
    }
}

// Scores of 16 rows (operand `q`) with `16 * PAIRS` keys in shared memory.
template <int D, int PAIRS> INLINE void score(float (*s)[4], const u32 (*q)[4], const bf16 *k, u32 lane) {
    #pragma unroll
    for (int step = 0; step < D / 16; step++) {
        #pragma unroll
        for (int pair = 0; pair < PAIRS; pair++) {
            u32 key = pair * 16 + (lane >> 4) * 8 + (lane & 7), col = step * 16 + ((lane >> 3) & 1) * 8, b[4];
            load_matrices(b, shared_address(k + key * PITCH(D) + col));
            mma_bf16(s[2 * pair], q[step], b[0], b[1]);
            mma_bf16(s[2 * pair + 1], q[step], b[2], b[3]);
        }
    }
}

// Adds the weighted values of `16 * PAIRS` keys to the sums of 16 rows.
template <int D, int PAIRS> INLINE void weigh(float (*o)[4], const float (*p)[4], const bf16 *v, u32 lane) {
    #pragma unroll
    for (int pair = 0; pair < PAIRS; pair++) {
        u32 weights[4] = {
            pack_bf16(p[2 * pair][0], p[2 * pair][1]), pack_bf16(p[2 * pair][2], p[2 * pair][3]),
            pack_bf16(p[2 * pair + 1][0], p[2 * pair + 1][1]), pack_bf16(p[2 * pair + 1][2], p[2 * pair + 1][3])};
        #pragma unroll
        for (int n = 0; n < D / 16; n++) {
            u32 key = pair * 16 + ((lane >> 3) & 1) * 8 + (lane & 7), col = n * 16 + (lane >> 4) * 8, b[4];
            load_matrices_transposed(b, shared_address(v + key * PITCH(D) + col));
            mma_bf16(o[2 * n], weights, b[0], b[1]);
            mma_bf16(o[2 * n + 1], weights, b[2], b[3]);
        }
    }
}

// The two rows of a lane in a 16-row tile: largest scaled score and sum of weights so far.
struct Softmax { float largest[2], total[2]; };

// Scores to weights; sums so far are scaled to the new largest score.
template <int D, int PAIRS> INLINE void soften(float (*s)[4], float (*o)[4], Softmax &m) {
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        float most = m.largest[half];
        #pragma unroll
        for (int n = 0; n < 2 * PAIRS; n++) most = fmaxf(most, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
        // A row without keys so far keeps weights of zero.
        float base = most == NEGATIVE_INFINITY ? 0.0f : most;
        float shrink = exp2_fast(m.largest[half] - base), sum = 0.0f;
        #pragma unroll
        for (int n = 0; n < 2 * PAIRS; n++) {
            s[n][2 * half] = exp2_fast(s[n][2 * half] - base);
            s[n][2 * half + 1] = exp2_fast(s[n][2 * half + 1] - base);
            sum += s[n][2 * half] + s[n][2 * half + 1];
        }
        m.largest[half] = most;
        m.total[half] = m.total[half] * shrink + sum;
        #pragma unroll
        for (int n = 0; n < D / 8; n++) {
            o[n][2 * half] *= shrink;
            o[n][2 * half + 1] *= shrink;
        }
    }
}

// Items: pairs (span, tile of 64 packed rows). Grid: items, key heads.
template <int D> INLINE void flash(const Attention &a) {
    extern __shared__ __align__(16) u8 memory[];
    begin();
    bf16 *queries = (bf16 *)memory;
    bf16 *tiles = queries + ROWS * PITCH(D);
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    const Span s = a.spans[a.items[2 * blockIdx.x]];
    u32 row0 = a.items[2 * blockIdx.x + 1] * ROWS, kv_head = blockIdx.y, group = a.heads / a.kv_heads, d = a.head_dim;
    u32 rows = s.queries * group;

    for (u32 i = threadIdx.x; i < ROWS * (D / 8); i += THREADS) {
        u32 r = i / (D / 8), piece = i % (D / 8), row = row0 + r;
        bool there = row < rows && piece * 8 < d;
        u64 from = there ? ((u64)(s.query + row / group) * a.heads + kv_head * group + row % group) * d + piece * 8 : 0;
        copy_ahead(shared_address(queries + r * PITCH(D) + piece * 8), a.q + from, there);
    }
    commit_copies();

    // Keys that some row of the tile sees.
    u32 first_token = row0 / group, last_token = min((row0 + ROWS - 1) / group, s.queries - 1);
    u32 before = s.keys - s.queries;
    u32 end = a.mask == FULL ? s.keys : before + last_token + 1;
    u32 start = a.mask == WINDOW && before + first_token + 1 > a.window ? before + first_token + 1 - a.window : 0;
    u32 tile = start / KEYS, last_tile = (end + KEYS - 1) / KEYS;
    const u32 one = KEYS * PITCH(D);
    copy_tile<D>(a, s, kv_head, tile * KEYS, tiles, tiles + one);
    commit_copies();

    wait_copies<1>();
    __syncthreads();
    u32 q[D / 16][4];
    #pragma unroll
    for (int step = 0; step < D / 16; step++) {
        u32 row = warp * 16 + (lane & 15), col = step * 16 + (lane >> 4) * 8;
        load_matrices(q[step], shared_address(queries + row * PITCH(D) + col));
    }
    // What the lane's two rows see.
    u32 from[2], to[2];
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        u32 position = before + min(row0 + warp * 16 + g + 8 * half, rows - 1) / group;
        to[half] = a.mask == FULL ? s.keys : position + 1;
        from[half] = a.mask == WINDOW && position + 1 > a.window ? position + 1 - a.window : 0;
    }
    float o[D / 8][4];
    #pragma unroll
    for (int n = 0; n < D / 8; n++) { o[n][0] = o[n][1] = o[n][2] = o[n][3] = 0.0f; }
    Softmax m = {{NEGATIVE_INFINITY, NEGATIVE_INFINITY}, {0.0f, 0.0f}};
    float scale = a.scale * LOG2_E;

    for (u32 now = 0; tile < last_tile; tile++, now ^= 1) {
        bf16 *k = tiles + now * 2 * one, *next = tiles + (now ^ 1) * 2 * one;
        if (tile + 1 < last_tile) copy_tile<D>(a, s, kv_head, (tile + 1) * KEYS, next, next + one);
        commit_copies();
        wait_copies<1>();
        __syncthreads();
        float p[KEYS / 8][4];
        #pragma unroll
        for (int n = 0; n < KEYS / 8; n++) { p[n][0] = p[n][1] = p[n][2] = p[n][3] = 0.0f; }
        score<D, KEYS / 16>(p, q, k, lane);
        #pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
            #pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 key = tile * KEYS + n * 8 + 2 * t + (i & 1);
                bool seen = key >= from[i >> 1] && key < to[i >> 1];
                p[n][i] = seen ? p[n][i] * scale : NEGATIVE_INFINITY;
            }
        }
        soften<D, KEYS / 16>(p, o, m);
        weigh<D, KEYS / 16>(o, p, k + one, lane);
        // The next round's copies go where this round read.
        __syncthreads();
    }
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        float total = m.total[half];
        total += __shfl_xor_sync(0xffffffffu, total, 1);
        total += __shfl_xor_sync(0xffffffffu, total, 2);
        u32 row = row0 + warp * 16 + g + 8 * half;
        if (row >= rows) continue;
        act *out = a.out + ((u64)(s.query + row / group) * a.heads + kv_head * group + row % group) * d;
        float inverse = 1.0f / total;
        #pragma unroll
        for (int n = 0; n < D / 8; n++)
            if (n * 8 < d) *(u32 *)(out + n * 8 + 2 * t) = pack_bf16(o[n][2 * half] * inverse, o[n][2 * half + 1] * inverse);
    }
}

#define FLASH(D) \
    extern "C" __global__ void __launch_bounds__(THREADS) flash_##D(const __grid_constant__ Attention a) { flash<D>(a); }
FLASH(64)
FLASH(80)
FLASH(96)
FLASH(128)

// One query token a sequence, over pages, its keys split between blocks; a block's warps share its tiles of keys out in
// sixteens. The last block of a (sequence, key head) adds the parts up in order of position, so the result depends on
// the sequence alone. Grid: splits, key heads, sequences. `items`: keys a split, one a sequence.
struct Split {
    float *parts;
    u32 *arrived;
    u32 splits;
};

template <int D> INLINE void decode(const Attention &a, const Split &x) {
    extern __shared__ __align__(16) u8 memory[];
    begin();
    bf16 *k = (bf16 *)memory, *v = k + KEYS * PITCH(D), *queries = v + KEYS * PITCH(D);
    float *meeting = (float *)(queries + 16 * PITCH(D));
    __shared__ u32 last;
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    u32 sequence = blockIdx.z, kv_head = blockIdx.y, group = a.heads / a.kv_heads, d = a.head_dim;
    const Span s = a.spans[sequence];
    u32 each = a.items[sequence];
    u32 start = a.mask == WINDOW && s.keys > a.window ? s.keys - a.window : 0;
    u32 first = blockIdx.x * each, end = min(first + each, s.keys);
    u32 splits = (s.keys + each - 1) / each;
    if (blockIdx.x >= splits) return;

    u64 query = ((u64)s.query * a.heads + kv_head * group) * d;
    for (u32 i = threadIdx.x; i < 16 * (D / 8); i += THREADS) {
        u32 r = i / (D / 8), piece = i % (D / 8);
        bool there = r < group && piece * 8 < d;
        copy_ahead(shared_address(queries + r * PITCH(D) + piece * 8), a.q + (there ? query + (u64)r * d + piece * 8 : 0), there);
    }
    commit_copies();
    float o[D / 8][4];
    #pragma unroll
    for (int n = 0; n < D / 8; n++) { o[n][0] = o[n][1] = o[n][2] = o[n][3] = 0.0f; }
    Softmax m = {{NEGATIVE_INFINITY, NEGATIVE_INFINITY}, {0.0f, 0.0f}};
    float scale = a.scale * LOG2_E;
    for (u32 tile = first; tile < end; tile += KEYS) {
        if (tile + KEYS <= start) continue;
        copy_tile<D>(a, s, kv_head, tile, k, v);
        commit_copies();
        wait_copies<0>();
        __syncthreads();
        u32 q[D / 16][4];
        #pragma unroll
        for (int step = 0; step < D / 16; step++)
            load_matrices(q[step], shared_address(queries + (lane & 15) * PITCH(D) + step * 16 + (lane >> 4) * 8));
        float p[2][4] = {{0.0f, 0.0f, 0.0f, 0.0f}, {0.0f, 0.0f, 0.0f, 0.0f}};
        score<D, 1>(p, q, k + warp * 16 * PITCH(D), lane);
        #pragma unroll
        for (int n = 0; n < 2; n++) {
            #pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 key = tile + warp * 16 + n * 8 + 2 * t + (i & 1);
                p[n][i] = key >= start && key < end ? p[n][i] * scale : NEGATIVE_INFINITY;
            }
        }
        soften<D, 1>(p, o, m);
        weigh<D, 1>(o, p, v + warp * 16 * PITCH(D), lane);
        __syncthreads();
    }
    // The warps' shares meet: 16 rows of D sums, largest and total, one after another.
    const u32 width = D + 2;
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        float total = m.total[half];
        total += __shfl_xor_sync(0xffffffffu, total, 1);
        total += __shfl_xor_sync(0xffffffffu, total, 2);
        float *row = meeting + (warp * 16 + g + 8 * half) * width;
        if (t == 0) { row[D] = m.largest[half]; row[D + 1] = total; }
        #pragma unroll
        for (int n = 0; n < D / 8; n++) {
            row[n * 8 + 2 * t] = o[n][2 * half];
            row[n * 8 + 2 * t + 1] = o[n][2 * half + 1];
        }
    }
    __syncthreads();
    u64 pair = (u64)sequence * a.kv_heads + kv_head;
    for (u32 i = threadIdx.x; i < group * d; i += THREADS) {
        u32 head = i / d, col = i % d;
        float most = NEGATIVE_INFINITY, total = 0.0f, sum = 0.0f;
        #pragma unroll
        for (u32 w = 0; w < 4; w++) most = fmaxf(most, meeting[(w * 16 + head) * width + D]);
        float base = most == NEGATIVE_INFINITY ? 0.0f : most;
        #pragma unroll
        for (u32 w = 0; w < 4; w++) {
            const float *row = meeting + (w * 16 + head) * width;
            float factor = exp2_fast(row[D] - base);
            total += row[D + 1] * factor;
            sum += row[col] * factor;
        }
        if (splits == 1) {
            a.out[query + i] = from_float<bf16>(sum / total);
            continue;
        }
        float *part = x.parts + ((pair * group + head) * x.splits + blockIdx.x) * width;
        part[col] = sum;
        if (col == 0) { part[D] = most; part[D + 1] = total; }
    }
    if (splits == 1) return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(x.arrived + pair, 1) == splits - 1;
    __syncthreads();
    if (!last) return;
    __threadfence();
    // What each part counts: a pass over (head, split) in parallel, then one over (head, column).
    float *shares = meeting;
    for (u32 i = threadIdx.x; i < group * splits; i += THREADS) {
        const float *part = x.parts + ((pair * group + i / splits) * x.splits + i % splits) * width;
        shares[2 * i] = __ldcg(part + D);
        shares[2 * i + 1] = __ldcg(part + D + 1);
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < group * d; i += THREADS) {
        u32 head = i / d, col = i % d;
        const float *parts = x.parts + (pair * group + head) * x.splits * width + col, *share = shares + 2 * head * splits;
        float most = NEGATIVE_INFINITY, total = 0.0f, sum = 0.0f;
        for (u32 n = 0; n < splits; n++) most = fmaxf(most, share[2 * n]);
        #pragma unroll 8
        for (u32 n = 0; n < splits; n++) {
            float factor = exp2_fast(share[2 * n] - most);
            total += share[2 * n + 1] * factor;
            sum += __ldcg(parts + n * width) * factor;
        }
        a.out[query + i] = from_float<bf16>(sum / total);
    }
    // Ready for the next launch.
    if (threadIdx.x == 0) x.arrived[pair] = 0;
}

#define DECODE(D) \
    extern "C" __global__ void __launch_bounds__(THREADS) decode_##D(const __grid_constant__ Attention a, \
                                                                     const __grid_constant__ Split x) { decode<D>(a, x); }
DECODE(64)
DECODE(80)
DECODE(96)
DECODE(128)
