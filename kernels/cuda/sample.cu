// Greedy choice: the largest logit of each row, the lowest number among equals, and whether a logit is NaN or infinite.

struct Choice { u32 token, broken; };

template <typename T> INLINE void greedy(Choice *out, const T *logits, u32 vocabulary) {
    __shared__ float best[32];
    __shared__ u32 where[32];
    __shared__ u32 faulty;
    if (threadIdx.x == 0) faulty = 0;
    __syncthreads();
    const T *row = logits + (u64)blockIdx.x * vocabulary;
    float most = NEGATIVE_INFINITY;
    u32 at = 0xffffffffu;
    bool broken = false;
    for (u32 i = threadIdx.x; i < vocabulary; i += blockDim.x) {
        float x = to_float(row[i]);
        broken |= !(x < __int_as_float(0x7f800000));
        if (x > most) { most = x; at = i; }
    }
    if (broken) faulty = 1;
    for (int step = 16; step > 0; step >>= 1) {
        float other = __shfl_xor_sync(0xffffffffu, most, step);
        u32 there = __shfl_xor_sync(0xffffffffu, at, step);
        if (other > most || (other == most && there < at)) { most = other; at = there; }
    }
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    if (lane == 0) { best[warp] = most; where[warp] = at; }
    __syncthreads();
    if (warp > 0) return;
    most = lane < blockDim.x / 32 ? best[lane] : NEGATIVE_INFINITY;
    at = lane < blockDim.x / 32 ? where[lane] : 0xffffffffu;
    for (int step = 16; step > 0; step >>= 1) {
        float other = __shfl_xor_sync(0xffffffffu, most, step);
        u32 there = __shfl_xor_sync(0xffffffffu, at, step);
        if (other > most || (other == most && there < at)) { most = other; at = there; }
    }
    // No logit above minus infinity: no token.
    if (lane == 0) { out[blockIdx.x].token = at; out[blockIdx.x].broken = faulty; }
}

extern "C" __global__ void greedy_wide(Choice *out, const float *logits, u32 vocabulary) { greedy(out, logits, vocabulary); }
extern "C" __global__ void greedy_narrow(Choice *out, const act *logits, u32 vocabulary) { greedy(out, logits, vocabulary); }
