// Norms. Sums are f32 in a fixed tree that depends on the group's size alone.

// One block a group: `x` and, with a residual, `sum = x + residual`, which is what is normed. Eights of groups that are
// whole eights; the order of additions is the same either way round for a group's size.
INLINE void rms_group(act *out, act *sum, const act *x, const act *residual, const act *weight, u32 group, float eps,
                      float *scratch) {
    float squares = 0.0f;
    bool eights = group % 8 == 0;
    u32 step = eights ? 8 : 1;
    for (u32 i = threadIdx.x * step; i < group; i += blockDim.x * step) {
        if (eights) {
            Eight v = load_eight(x + i);
            if (residual) {
                Eight r = load_eight(residual + i);
                for (int j = 0; j < 8; j++) v.x[j] = to_float(to_act(v.x[j] + r.x[j]));
                store_eight(sum + i, v);
            }
            for (int j = 0; j < 8; j++) squares += v.x[j] * v.x[j];
            continue;
        }
        float value = to_float(x[i]);
        if (residual) {
            act rounded = to_act(value + to_float(residual[i]));
            sum[i] = rounded;
            value = to_float(rounded);
        }
        squares += value * value;
    }
    float scale = 1.0f / sqrtf(block_sum(squares, scratch) / (float)group + eps);
    const act *from = residual ? sum : x;
    for (u32 i = threadIdx.x * step; i < group; i += blockDim.x * step) {
        if (eights) {
            Eight v = load_eight(from + i), w = load_eight(weight + i);
            for (int j = 0; j < 8; j++) v.x[j] = v.x[j] * scale * w.x[j];
            store_eight(out + i, v);
        } else {
            out[i] = to_act(to_float(from[i]) * scale * to_float(weight[i]));
        }
    }
}

extern "C" __global__ void rms_norm(act *out, const act *x, const act *weight, u32 group, float eps) {
    __shared__ float scratch[33];
    begin();
    u64 at = (u64)blockIdx.x * group;
    rms_group(out + at, 0, x + at, 0, weight, group, eps, scratch);
}

extern "C" __global__ void add_rms_norm(act *out, act *sum, const act *x, const act *residual, const act *weight,
                                        u32 group, float eps) {
    __shared__ float scratch[33];
    begin();
    u64 at = (u64)blockIdx.x * group;
    rms_group(out + at, sum + at, x + at, residual + at, weight, group, eps, scratch);
}

extern "C" __global__ void layer_norm(act *out, const act *x, const act *weight, const act *bias, u32 cols, float eps) {
    __shared__ float scratch[33];
    begin();
    u64 at = (u64)blockIdx.x * cols;
    float sum = 0.0f;
    for (u32 i = threadIdx.x; i < cols; i += blockDim.x) sum += to_float(x[at + i]);
    float mean = block_sum(sum, scratch) / (float)cols;
    float squares = 0.0f;
    for (u32 i = threadIdx.x; i < cols; i += blockDim.x) {
        float off = to_float(x[at + i]) - mean;
        squares += off * off;
    }
    float scale = 1.0f / sqrtf(block_sum(squares, scratch) / (float)cols + eps);
    for (u32 i = threadIdx.x; i < cols; i += blockDim.x) {
        float normed = (to_float(x[at + i]) - mean) * scale * to_float(weight[i]);
        out[at + i] = to_act(bias ? normed + to_float(bias[i]) : normed);
    }
}
