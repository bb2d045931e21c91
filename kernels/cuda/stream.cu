// Products of few rows (a decode step): weights stream from memory once, straight into the operands of tensor core
// instructions, with eight 16-byte loads in flight a thread.
//
// A block makes 16 * SIDE outputs for up to 8 * TILES rows. SIDE of its warps work side by side on the same inputs, so
// that they find the activations in the cache; the other way its warps share the inputs out among themselves in pieces of
// 32 and add their sums at the end. In `mma.m16n8k16` the weight is operand A. Which inputs a lane holds is free as long as both
// operands agree, so each lane of a quad takes 8 neighbouring inputs of a piece: one 16-byte load of a weight row serves
// two instructions.
//
// The order of additions depends on the number of inputs and on SIDE, which belongs to the weight's shape: rows do not see
// one another.

// Four products of one input in one launch.
struct Part {
    Weight w;
    const act *bias;
    void *out;
    u32 first_tile;
    u32 wide;
};
struct Parts {
    Part part[4];
    u32 count;
    u32 rows;
};

INLINE void mma(float *c, const u32 *a, u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Read once, so it should not push the activations out of the cache.
INLINE uint4 load_once(const void *from) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
    return v;
}

// How a lane gets 8 neighbouring elements of a weight row as four bf16 pairs. `raw` is what is loaded ahead.
struct DenseLoad {
    typedef uint4 raw;
    static INLINE raw load(const Weight &w, u64 row, u32 col) { return load_once((const bf16 *)w.data + row * w.inputs + col); }
    static INLINE raw none() { return make_uint4(0, 0, 0, 0); }
    static INLINE void pairs(const raw &r, u32 *out) { out[0] = r.x; out[1] = r.y; out[2] = r.z; out[3] = r.w; }
};
struct Codes4Load {
    struct raw { u32 codes; float2 scale; };
    static INLINE raw load(const Weight &w, u64 row, u32 col) {
        u64 at = row * w.inputs + col;
        raw r;
        r.codes = __ldg((const u32 *)((const u8 *)w.data + (at >> 1)));
        r.scale = __ldg(w.scales + (at >> w.group_shift));
        return r;
    }
    static INLINE raw none() { raw r; r.codes = 0; r.scale = make_float2(0.0f, 0.0f); return r; }
    static INLINE void pairs(const raw &r, u32 *out) {
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            float a = (float)((r.codes >> (8 * i)) & 15), b = (float)((r.codes >> (8 * i + 4)) & 15);
            out[i] = pack_bf16(fmaf(r.scale.x, a, r.scale.y), fmaf(r.scale.x, b, r.scale.y));
        }
    }
};
struct Codes8Load {
    struct raw { uint2 codes; float2 scale; };
    static INLINE raw load(const Weight &w, u64 row, u32 col) {
        u64 at = row * w.inputs + col;
        raw r;
        r.codes = __ldg((const uint2 *)((const u8 *)w.data + at));
        r.scale = __ldg(w.scales + (at >> w.group_shift));
        return r;
    }
    static INLINE raw none() { raw r; r.codes = make_uint2(0, 0); r.scale = make_float2(0.0f, 0.0f); return r; }
    static INLINE void pairs(const raw &r, u32 *out) {
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 word = i < 2 ? r.codes.x : r.codes.y;
            float a = (float)(signed char)(word >> (16 * (i & 1))), b = (float)(signed char)(word >> (16 * (i & 1) + 8));
            out[i] = pack_bf16(fmaf(r.scale.x, a, r.scale.y), fmaf(r.scale.x, b, r.scale.y));
        }
    }
};

// Pieces of inputs loaded before the first is used: two weight rows each, so eight loads.
#define AHEAD 4
#define PIECE 32
#define WARPS 16

template <typename Load, int TILES, int SIDE>
INLINE void stream(const Parts &all, const bf16 *x) {
    const int GROUP = TILES < 4 ? TILES : 4, SLICES = WARPS / SIDE;
    __shared__ float partial[WARPS][16][8 * GROUP + 1];
    u32 own = 0;
    while (own + 1 < all.count && blockIdx.x >= all.part[own + 1].first_tile) own++;
    const Part &part = all.part[own];
    const Weight &w = part.w;
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    u32 block0 = (blockIdx.x - part.first_tile) * 16 * SIDE, output0 = block0 + warp % SIDE * 16, slice = warp / SIDE;
    u32 inputs = w.inputs, pieces = inputs / PIECE;
    // Rows beyond the matrix read its last row; their results are dropped.
    u64 low = min(output0 + g, w.outputs - 1), high = min(output0 + g + 8, w.outputs - 1);
    float sums[TILES][4];
    #pragma unroll
    for (int n = 0; n < TILES; n++) { sums[n][0] = sums[n][1] = sums[n][2] = sums[n][3] = 0.0f; }
    const bf16 *row[TILES];
    #pragma unroll
    for (int n = 0; n < TILES; n++) row[n] = x + (u64)min(n * 8 + g, all.rows - 1) * inputs;

    typename Load::raw a[AHEAD][2];
    dependents_may_start();
    bool waited = false;
    for (u32 piece = slice * AHEAD; piece < pieces; piece += SLICES * AHEAD) {
        #pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            u32 col = (piece + i) * PIECE + t * 8;
            bool there = piece + i < pieces;
            a[i][0] = there ? Load::load(w, low, col) : Load::none();
            a[i][1] = there ? Load::load(w, high, col) : Load::none();
        }
        // The first weights are on their way before the activations are there.
        if (!waited) await_inputs();
        waited = true;
        #pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (piece + i >= pieces) break;
            u32 col = (piece + i) * PIECE + t * 8;
            u32 upper[4], lower[4];
            Load::pairs(a[i][0], upper);
            Load::pairs(a[i][1], lower);
            u32 first[4] = {upper[0], lower[0], upper[1], lower[1]}, second[4] = {upper[2], lower[2], upper[3], lower[3]};
            #pragma unroll
            for (int n = 0; n < TILES; n++) {
                uint4 b = *(const uint4 *)(row[n] + col);
                mma(sums[n], first, b.x, b.y);
                mma(sums[n], second, b.z, b.w);
            }
        }
    }
    if (!waited) await_inputs();
    // Sums meet in shared memory, four tiles of rows at a time.
    #pragma unroll
    for (int first = 0; first < TILES; first += GROUP) {
        if (first > 0) __syncthreads();
        #pragma unroll
        for (int n = 0; n < GROUP; n++) {
            partial[warp][g][n * 8 + 2 * t] = sums[first + n][0];
            partial[warp][g][n * 8 + 2 * t + 1] = sums[first + n][1];
            partial[warp][g + 8][n * 8 + 2 * t] = sums[first + n][2];
            partial[warp][g + 8][n * 8 + 2 * t + 1] = sums[first + n][3];
        }
        __syncthreads();
        for (u32 i = threadIdx.x; i < 16 * SIDE * 8 * GROUP; i += WARPS * 32) {
            u32 column = i % (16 * SIDE), output = block0 + column, row = i / (16 * SIDE), r = first * 8 + row;
            if (output >= w.outputs || r >= all.rows) continue;
            float sum = 0.0f;
            #pragma unroll
            for (int slice = 0; slice < SLICES; slice++) sum += partial[slice * SIDE + column / 16][column % 16][row];
            if (part.bias) sum += to_float(part.bias[output]);
            u64 at = (u64)r * w.outputs + output;
            if (part.wide) ((float *)part.out)[at] = sum;
            else ((act *)part.out)[at] = to_act(sum);
        }
    }
}

#define STREAM(NAME, LOAD, TILES, SIDE) \
    extern "C" __global__ void __launch_bounds__(WARPS * 32) NAME##_##SIDE##_##TILES(const __grid_constant__ Parts all, const bf16 *x) { \
        stream<LOAD, TILES, SIDE>(all, x); \
    }
#define STREAMS(NAME, LOAD) \
    STREAM(NAME, LOAD, 1, 1) STREAM(NAME, LOAD, 2, 1) STREAM(NAME, LOAD, 4, 1) STREAM(NAME, LOAD, 8, 1) \
    STREAM(NAME, LOAD, 1, 4) STREAM(NAME, LOAD, 2, 4) STREAM(NAME, LOAD, 4, 4) STREAM(NAME, LOAD, 8, 4)

STREAMS(stream_dense, DenseLoad)
STREAMS(stream_codes4, Codes4Load)
STREAMS(stream_codes8, Codes8Load)
