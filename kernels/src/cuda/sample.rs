//! Sampling. The greedy choice is made on the device; a row that asks for more comes to the host, whose sampler defines
//! the order of steps.

#![expect(unsafe_code, reason = "reading results back")]

use cudarc::driver::result;

use super::device::fault;
use super::launch::Kernel;
use super::tensor::CudaTensor;
use super::{Activations, CudaBackend};
use crate::cpu::sample_row;
use crate::error::{KernelError, Result};
use crate::shapes::{SampleRow, Sampled};

const OP: &str = "sample";

fn greedy(row: &SampleRow) -> bool {
    row.temperature == 0.0
        && row.bias.is_empty()
        && row.mask.is_none()
        && row.logprobs.is_none()
        && row.watch.is_empty()
}

/// Operands were checked.
pub(super) fn sample(cuda: &CudaBackend, logits: &CudaTensor, rows: &[SampleRow]) -> Result<Vec<Sampled>> {
    let choices = if rows.iter().any(greedy) { choose(cuda, logits)? } else { Vec::new() };
    rows.iter()
        .enumerate()
        .map(|(i, row)| {
            if !greedy(row) {
                return sample_row(&cuda.fetch(OP, logits, i..i + 1)?, row);
            }
            match choices[i] {
                u64::MAX => Err(KernelError::Device("sample: logits hold NaN or infinity".into())),
                0 => Err(KernelError::Device("sample: no token is allowed".into())),
                // The token is counted down in the low half.
                best => Ok(Sampled { token: !(best as u32), logprob: None, top: Vec::new(), watched: Vec::new() }),
            }
        })
        .collect()
}

/// The best candidate of every row, in the code of `sample.cu`.
fn choose(cuda: &CudaBackend, logits: &CudaTensor) -> Result<Vec<u64>> {
    /// Logits that a block looks at.
    const SHARE: usize = 4096;
    let inner = &cuda.inner;
    let out = inner.device.block(OP, 8 * logits.rows())?;
    out.zero(OP, 8 * logits.rows())?;
    let kernel = match logits.elements() {
        Activations::F32 => Kernel::GreedyWide,
        Activations::Bf16 => Kernel::GreedyNarrow,
    };
    let grid = [logits.cols().div_ceil(SHARE) as u32, logits.rows() as u32, 1];
    let launch = inner.kernels.launch(kernel).grid(grid).block(512, 0);
    launch.with(out.address()).with(logits.address()).with(logits.cols() as u32).go(OP)?;
    let mut choices = vec![0u64; logits.rows()];
    // SAFETY: both sides hold a number a row; the stream is waited for before the host memory is read.
    unsafe { result::memcpy_dtoh_async(&mut choices, out.address(), inner.device.stream) }.map_err(fault(OP))?;
    inner.device.synchronize(OP)?;
    Ok(choices)
}
