// What every kernel file starts with: number types, conversions and reductions. Header-free, so that NVRTC needs no
// toolkit. `act` is the element type of activations, fixed when a file is compiled.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct bf16 { u16 bits; };
struct f16 { u16 bits; };

#define INLINE __device__ __forceinline__
#define NEGATIVE_INFINITY __int_as_float(0xff800000)

INLINE float to_float(float x) { return x; }
INLINE float to_float(bf16 x) { return __uint_as_float((u32)x.bits << 16); }
INLINE float to_float(f16 x) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
    return wide;
}

template <typename T> INLINE T from_float(float x);
template <> INLINE float from_float<float>(float x) { return x; }
template <> INLINE bf16 from_float<bf16>(float x) {
    bf16 narrow;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(x));
    return narrow;
}

// Two numbers as a pair of bf16, the first in the low half.
INLINE u32 pack_bf16(float low, float high) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
INLINE float low_bf16(u32 pair) { return __uint_as_float(pair << 16); }
INLINE float high_bf16(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }

#ifdef ACT_BF16
typedef bf16 act;
#else
typedef float act;
#endif

INLINE act to_act(float x) { return from_float<act>(x); }

// A kernel may be started while the one before it on the stream still runs (on chips that can, when the launch says so).
// `dependents_may_start` lets the next one come; `await_inputs` returns when everything before is done and seen. Every
// kernel calls the second before it touches anything that another kernel writes or reads, weights excepted.
INLINE void dependents_may_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
INLINE void await_inputs() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
INLINE void begin() {
    dependents_may_start();
    await_inputs();
}

// Eight activations at once; addresses are multiples of 16 bytes (8 of them for bf16).
struct Eight { float x[8]; };
INLINE Eight load_eight(const float *from) {
    float4 a = ((const float4 *)from)[0], b = ((const float4 *)from)[1];
    return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
}
INLINE Eight load_eight(const bf16 *from) {
    uint4 v = *(const uint4 *)from;
    return {{low_bf16(v.x), high_bf16(v.x), low_bf16(v.y), high_bf16(v.y), low_bf16(v.z), high_bf16(v.z), low_bf16(v.w), high_bf16(v.w)}};
}
INLINE void store_eight(float *to, const Eight &v) {
    ((float4 *)to)[0] = make_float4(v.x[0], v.x[1], v.x[2], v.x[3]);
    ((float4 *)to)[1] = make_float4(v.x[4], v.x[5], v.x[6], v.x[7]);
}
INLINE void store_eight(bf16 *to, const Eight &v) {
    *(uint4 *)to = make_uint4(pack_bf16(v.x[0], v.x[1]), pack_bf16(v.x[2], v.x[3]), pack_bf16(v.x[4], v.x[5]), pack_bf16(v.x[6], v.x[7]));
}
// As many as are left of `count` from element `i` on: whole eights take the fast path.
INLINE Eight load_some(const act *from, u64 i, u64 count) {
    if (i + 8 <= count) return load_eight(from + i);
    Eight v;
    for (int j = 0; j < 8; j++) v.x[j] = i + j < count ? to_float(from[i + j]) : 0.0f;
    return v;
}
INLINE void store_some(act *to, u64 i, u64 count, const Eight &v) {
    if (i + 8 <= count) { store_eight(to + i, v); return; }
    for (int j = 0; j < 8; j++)
        if (i + j < count) to[i + j] = to_act(v.x[j]);
}

// Sum (or largest) over a warp, the same in all lanes. The tree is fixed, so equal inputs give equal bits.
INLINE float warp_sum(float x) {
    for (int step = 16; step > 0; step >>= 1) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}
INLINE float warp_max(float x) {
    for (int step = 16; step > 0; step >>= 1) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

// Sum over a block of whole warps, the same in all threads. `scratch` holds 33 floats and may be reused at once.
INLINE float block_sum(float x, float *scratch) {
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    x = warp_sum(x);
    if (lane == 0) scratch[warp] = x;
    __syncthreads();
    if (warp == 0) {
        float y = warp_sum(lane < warps ? scratch[lane] : 0.0f);
        if (lane == 0) scratch[32] = y;
    }
    __syncthreads();
    float total = scratch[32];
    __syncthreads();
    return total;
}

// Weight storage, as numbered by the host: dense elements, or codes apart from their scales.
enum Format { DENSE_F32 = 0, DENSE_F16 = 1, DENSE_BF16 = 2, CODES_4 = 3, CODES_8 = 4 };

// A weight matrix `[outputs, inputs]`. Codes: element = scale * code + offset, where a pair (scale, offset) serves
// `1 << group_shift` consecutive elements; 4-bit codes are unsigned, the even element in the low half of a byte; 8-bit
// codes are signed.
struct Weight {
    const void *data;
    const float2 *scales;
    u32 outputs;
    u32 inputs;
    u32 format;
    u32 group_shift;
};

INLINE float element(const Weight &w, u64 row, u32 col) {
    u64 at = row * w.inputs + col;
    switch (w.format) {
        case DENSE_F32: return ((const float *)w.data)[at];
        case DENSE_F16: return to_float(((const f16 *)w.data)[at]);
        case DENSE_BF16: return to_float(((const bf16 *)w.data)[at]);
    }
    float2 scale = w.scales[at >> w.group_shift];
    float code;
    if (w.format == CODES_4) {
        u32 byte = ((const u8 *)w.data)[at >> 1];
        code = (float)(at & 1 ? byte >> 4 : byte & 15);
    } else {
        code = (float)((const signed char *)w.data)[at];
    }
    // Rounded twice, as the format's readers do: not one fused operation.
    return __fadd_rn(__fmul_rn(scale.x, code), scale.y);
}
