// Products in f32, every result summed over the inputs in order: the same bits whatever the number of rows.

#define TILE 64
#define DEPTH 16

// `out [rows, outputs] = x W^T + bias`, one 64 x 64 tile a block of 256 threads, 4 x 4 results a thread. `out` is f32 or
// an activation, by `wide`.
extern "C" __global__ void __launch_bounds__(256) product_exact(void *out, const act *x, Weight w, const act *bias,
                                                                 u32 rows, u32 wide) {
    __shared__ float xs[DEPTH][TILE + 4];
    __shared__ float ws[DEPTH][TILE + 4];
    begin();
    u32 inputs = w.inputs, outputs = w.outputs;
    u32 row0 = blockIdx.y * TILE, col0 = blockIdx.x * TILE;
    u32 tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    float sums[4][4];
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) sums[i][j] = 0.0f;
    for (u32 k0 = 0; k0 < inputs; k0 += DEPTH) {
        for (u32 i = threadIdx.x; i < TILE * DEPTH; i += 256) {
            u32 k = i % DEPTH, r = i / DEPTH;
            bool inside = k0 + k < inputs;
            xs[k][r] = inside && row0 + r < rows ? to_float(x[(u64)(row0 + r) * inputs + k0 + k]) : 0.0f;
            ws[k][r] = inside && col0 + r < outputs ? element(w, col0 + r, k0 + k) : 0.0f;
        }
        __syncthreads();
        for (u32 k = 0; k < DEPTH; k++) {
            float a[4], b[4];
            for (int i = 0; i < 4; i++) a[i] = xs[k][ty * 4 + i];
            for (int j = 0; j < 4; j++) b[j] = ws[k][tx * 4 + j];
            for (int i = 0; i < 4; i++)
                for (int j = 0; j < 4; j++) sums[i][j] = fmaf(a[i], b[j], sums[i][j]);
        }
        __syncthreads();
    }
    for (int i = 0; i < 4; i++) {
        u32 row = row0 + ty * 4 + i;
        for (int j = 0; j < 4; j++) {
            u32 col = col0 + tx * 4 + j;
            if (row >= rows || col >= outputs) continue;
            float value = bias ? sums[i][j] + to_float(bias[col]) : sums[i][j];
            u64 at = (u64)row * outputs + col;
            if (wide) ((float *)out)[at] = value;
            else ((act *)out)[at] = to_act(value);
        }
    }
}
