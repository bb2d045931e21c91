// Greedy choice: the largest logit of each row, the lowest number among equals. Blocks share a row; what they found meets
// in one 64-bit maximum a row, zero before the launch: the logit in an order-keeping code, then the token, counted down.
// All ones stand for a logit that is NaN or infinite; a logit of minus infinity is no candidate.

#define NONE 0ull
#define BROKEN 0xffffffffffffffffull

INLINE u64 candidate(float x, u32 token) {
    u32 bits = __float_as_uint(x == 0.0f ? 0.0f : x);
    u32 ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (u64)ordered << 32 | (0xffffffffu - token);
}

INLINE u64 larger(u64 a, u64 b) { return a > b ? a : b; }

// Grid: blocks of a row, rows.
template <typename T> INLINE void greedy(u64 *out, const T *logits, u32 vocabulary) {
    __shared__ u64 best[32];
    begin();
    const T *row = logits + (u64)blockIdx.y * vocabulary;
    u64 most = NONE;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < vocabulary; i += gridDim.x * blockDim.x) {
        float x = to_float(row[i]);
        if (!(x < __int_as_float(0x7f800000))) most = BROKEN;
        else if (x > NEGATIVE_INFINITY) most = larger(most, candidate(x, i));
    }
    for (int step = 16; step > 0; step >>= 1) most = larger(most, __shfl_xor_sync(0xffffffffu, most, step));
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    if (lane == 0) best[warp] = most;
    __syncthreads();
    if (warp > 0) return;
    most = lane < blockDim.x / 32 ? best[lane] : NONE;
    for (int step = 16; step > 0; step >>= 1) most = larger(most, __shfl_xor_sync(0xffffffffu, most, step));
    if (lane == 0) atomicMax(out + blockIdx.y, most);
}

extern "C" __global__ void greedy_wide(u64 *out, const float *logits, u32 vocabulary) { greedy(out, logits, vocabulary); }
extern "C" __global__ void greedy_narrow(u64 *out, const act *logits, u32 vocabulary) { greedy(out, logits, vocabulary); }
