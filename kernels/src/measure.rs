//! What the machine itself can do, for fractions in benchmarks.

use std::hint::black_box;
use std::time::Instant;

use crate::backend::Backend;
use crate::cuda::{Activations, CudaBackend};
use crate::error::Result;
use crate::weights::{WeightData, WeightFormat};

/// Bytes each thread copies at once: far more than a last-level cache holds.
const BLOCK: usize = 64 << 20;

/// Copy bandwidth of this many threads in bytes a second, read and written bytes both counted; the best of several
/// copies, since other work on the machine can only lower it.
pub fn copy_bandwidth(threads: usize) -> f64 {
    let threads = threads.max(1);
    let mut blocks: Vec<_> = (0..threads).map(|n| (vec![n as u8 + 1; BLOCK], vec![0u8; BLOCK])).collect();
    let mut best = f64::MAX;
    for _ in 0..5 {
        let began = Instant::now();
        std::thread::scope(|scope| {
            for (from, to) in &mut blocks {
                scope.spawn(move || {
                    to.copy_from_slice(from);
                    black_box(to);
                });
            }
        });
        best = best.min(began.elapsed().as_secs_f64());
    }
    (2 * BLOCK * threads) as f64 / best
}

/// What a GPU can do.
#[derive(Debug, Clone, Copy)]
pub struct GpuCeilings {
    /// Copy on the device in bytes a second, read and written bytes both counted.
    pub copy: f64,
    /// Operations a second of a large bf16 product of random numbers.
    pub product: f64,
}

/// Measures the first GPU; takes about 2 GiB of its memory meanwhile.
///
/// # Errors
/// When there is none, or no room.
pub fn gpu_ceilings() -> Result<GpuCeilings> {
    const SIDE: usize = 8192;
    let gpu = CudaBackend::open(Activations::Bf16)?;
    let mut state = 1u64;
    let mut noise = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    let values: Vec<f32> = (0..SIDE * SIDE).map(|_| noise()).collect();
    let x = gpu.upload(SIDE, SIDE, &values)?;
    let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>();
    let w = gpu.weight(&WeightData { rows: SIDE, cols: SIDE, format: WeightFormat::F32, bytes: bytes.into() })?;
    let product = best(&gpu, || gpu.linear(&x, &w, None).map(drop))?;
    // Four of them below one another: 512 MiB, many times what a cache holds.
    let four = gpu.concat_rows(&[&x, &x, &x, &x])?;
    let copy = best(&gpu, || gpu.concat_rows(&[&four]).map(drop))?;
    Ok(GpuCeilings { copy: 16.0 * (SIDE * SIDE) as f64 / copy, product: 2.0 * (SIDE as f64).powi(3) / product })
}

/// Seconds of one run, the least over several rounds of ten.
fn best(gpu: &CudaBackend, mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    const RUNS: u32 = 10;
    let mut best = f64::MAX;
    for _ in 0..4 {
        gpu.synchronize()?;
        let began = Instant::now();
        (0..RUNS).try_for_each(|_| run())?;
        gpu.synchronize()?;
        best = best.min(began.elapsed().as_secs_f64() / f64::from(RUNS));
    }
    Ok(best)
}
