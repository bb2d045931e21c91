// Attention in f32, one warp for each query row and head, keys in order of position in tiles of 32 anchored at
// position 0: a query's result has the same bits alone, in a chunk and in a batch, over rows and over pages. Keys that it
// does not see are never multiplied into it. For exactness, and for head sizes that the tensor core kernels do not take.

enum MaskKind { FULL = 0, CAUSAL = 1, WINDOW = 2 };

// A segment, or a sequence over pages: `table` is where its page numbers begin in `tables`.
struct Span {
    u32 query, queries, key, keys, table, pad0, pad1, pad2;
};

// What all blocks share. Keys lie in rows of `k_stride` elements, or in pages when `page_tokens` is not 0.
struct Attention {
    act *out;
    const act *q;
    const act *k;
    const act *v;
    const Span *spans;
    const u32 *items;
    const u32 *tables;
    float scale;
    u32 heads, kv_heads, head_dim, mask, window, page_tokens, items_count;
};

INLINE u64 key_at(const Attention &a, const Span &s, u32 position, u32 kv_head) {
    if (a.page_tokens == 0) return ((u64)(s.key + position) * a.kv_heads + kv_head) * a.head_dim;
    u32 page = a.tables[s.table + position / a.page_tokens];
    return (((u64)page * a.kv_heads + kv_head) * a.page_tokens + position % a.page_tokens) * a.head_dim;
}

#define WARPS 4
#define MOST_DIM 256

// Items: pairs (span, query row of the span).
extern "C" __global__ void __launch_bounds__(WARPS * 32) attention_exact(const __grid_constant__ Attention a) {
    __shared__ float queries[WARPS][MOST_DIM];
    begin();
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    u64 number = (u64)blockIdx.x * WARPS + warp;
    if (number >= (u64)a.items_count * a.heads) return;
    u32 item = (u32)(number / a.heads), head = (u32)(number % a.heads), kv_head = head / (a.heads / a.kv_heads);
    const Span s = a.spans[a.items[2 * item]];
    u32 own = a.items[2 * item + 1], d = a.head_dim;
    u64 at = ((u64)(s.query + own) * a.heads + head) * d;
    float *query = queries[warp];
    for (u32 i = lane; i < d; i += 32) query[i] = to_float(a.q[at + i]) * a.scale;
    __syncwarp();
    // Queries are the last positions of the keys.
    u32 position = s.keys - s.queries + own;
    u32 end = a.mask == FULL ? s.keys : position + 1;
    u32 start = a.mask == WINDOW && position + 1 > a.window ? position + 1 - a.window : 0;
    float largest = NEGATIVE_INFINITY, total = 0.0f, sums[MOST_DIM / 32];
    #pragma unroll
    for (int i = 0; i < MOST_DIM / 32; i++) sums[i] = 0.0f;
    for (u32 tile = start / 32 * 32; tile < end; tile += 32) {
        u32 key = tile + lane;
        bool seen = key >= start && key < end;
        u64 from = seen ? key_at(a, s, key, kv_head) : 0;
        float score = NEGATIVE_INFINITY;
        if (seen) {
            score = 0.0f;
            for (u32 i = 0; i < d; i++) score = fmaf(query[i], to_float(a.k[from + i]), score);
        }
        float most = fmaxf(largest, warp_max(score));
        float weight = seen ? expf(score - most) : 0.0f;
        float shrink = expf(largest - most);
        total = total * shrink + warp_sum(weight);
        largest = most;
        #pragma unroll
        for (int i = 0; i < MOST_DIM / 32; i++) sums[i] *= shrink;
        u32 first = max(start, tile) - tile, last = min(end, tile + 32) - tile;
        for (u32 j = first; j < last; j++) {
            float w = __shfl_sync(0xffffffffu, weight, j);
            u64 value = __shfl_sync(0xffffffffu, from, j);
            #pragma unroll
            for (int i = 0; i < MOST_DIM / 32; i++)
                if (i * 32 + lane < d) sums[i] = fmaf(w, to_float(a.v[value + i * 32 + lane]), sums[i]);
        }
    }
    #pragma unroll
    for (int i = 0; i < MOST_DIM / 32; i++)
        if (i * 32 + lane < d) a.out[at + i * 32 + lane] = to_act(sums[i] / total);
}
