//! Products: which kernel takes which.
//!
//! | activations | rows | kernel | same bits whatever the number of rows |
//! |---|---|---|---|
//! | f32 | any | `product_exact` | yes |
//! | bf16 | up to 64 | `stream_*` | yes |
//! | bf16 | more | cuBLASLt | no: it chooses by the number of rows |
//! | bf16 | any, inputs not a multiple of 32 | `product_exact`, or cuBLASLt | |

use super::launch::{Kernel, Parameter};
use super::tensor::{CudaTensor, CudaWeight, Storage, WeightParameter};
use super::{Activations, CudaBackend};
use crate::error::Result;

/// Rows up to which weights are streamed.
const STREAMED_ROWS: usize = 64;
/// Inputs that a warp of the streaming kernels takes at once.
const PIECE: usize = 32;
/// Products in one launch, as in `stream.cu`.
const PARTS: usize = 4;

/// `Part` in `stream.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Part {
    weight: WeightParameter,
    bias: u64,
    out: u64,
    first_tile: u32,
    wide: u32,
}

/// `Parts` in `stream.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Parts {
    part: [Part; PARTS],
    count: u32,
    rows: u32,
}

// SAFETY: `repr(C)`, 29 words.
#[expect(unsafe_code, reason = "a kernel parameter")]
unsafe impl Parameter for Parts {}

/// One product: weight and bias.
pub(super) type Product<'a> = (&'a CudaWeight, Option<&'a CudaTensor>);

/// Products of one input. Operands were checked. `elements` is the type of the results.
pub(super) fn products(
    cuda: &CudaBackend,
    op: &'static str,
    x: &CudaTensor,
    parts: &[Product<'_>],
    elements: Activations,
) -> Result<Vec<CudaTensor>> {
    let outs = parts.iter().map(|(w, _)| cuda.tensor(op, (x.rows(), w.shape().0), elements));
    let outs = outs.collect::<Result<Vec<_>>>()?;
    let all: Vec<(&Product<'_>, &CudaTensor)> = parts.iter().zip(&outs).collect();
    let streamed = |w: &CudaWeight| {
        cuda.inner.activations == Activations::Bf16
            && x.rows() <= STREAMED_ROWS
            && w.shape().1.is_multiple_of(PIECE)
            && w.shape().1 > 0
            && matches!(w.storage(), Storage::Bf16 | Storage::Codes4 | Storage::Codes8)
    };
    let mut rest = all.as_slice();
    while let Some(((w, _), _)) = rest.first() {
        // Neighbours of one storage share a launch.
        let alike = rest.iter().take(PARTS).take_while(|((other, _), _)| other.storage() == w.storage()).count();
        let (now, later) = rest.split_at(alike);
        if x.rows() == 0 {
        } else if streamed(w) {
            stream(cuda, op, x, now)?;
        } else {
            now.iter().try_for_each(|(product, out)| single(cuda, op, x, product, out))?;
        }
        rest = later;
    }
    Ok(outs)
}

fn stream(
    cuda: &CudaBackend,
    op: &'static str,
    x: &CudaTensor,
    products: &[(&Product<'_>, &CudaTensor)],
) -> Result<()> {
    let mut tiles = 0;
    let mut part = |(product, out): &(&Product<'_>, &CudaTensor)| {
        let first_tile = tiles;
        tiles += out.cols().div_ceil(16) as u32;
        let bias = product.1.map_or(0, CudaTensor::address);
        let wide = u32::from(out.elements() == Activations::F32);
        Part { weight: product.0.parameter(), bias, out: out.address(), first_tile, wide }
    };
    let mut all = Parts { part: [part(&products[0]); PARTS], count: products.len() as u32, rows: x.rows() as u32 };
    for (i, product) in products.iter().enumerate().skip(1) {
        all.part[i] = part(product);
    }
    let kernels = match products[0].0.0.storage() {
        Storage::Codes4 => [Kernel::Codes4x1, Kernel::Codes4x2, Kernel::Codes4x4, Kernel::Codes4x8],
        Storage::Codes8 => [Kernel::Codes8x1, Kernel::Codes8x2, Kernel::Codes8x4, Kernel::Codes8x8],
        _ => [Kernel::Dense1, Kernel::Dense2, Kernel::Dense4, Kernel::Dense8],
    };
    let kernel = kernels[x.rows().div_ceil(8).next_power_of_two().ilog2() as usize];
    cuda.inner.kernels.launch(kernel).grid([tiles, 1, 1]).block(512, 0).with(all).with(x.address()).go(op)
}

/// A product of many rows, or of a shape that is not streamed.
fn single(
    cuda: &CudaBackend,
    op: &'static str,
    x: &CudaTensor,
    (w, bias): &Product<'_>,
    out: &CudaTensor,
) -> Result<()> {
    let (outputs, inputs) = w.shape();
    if outputs == 0 {
        return Ok(());
    }
    if cuda.inner.activations == Activations::Bf16 && x.rows() > STREAMED_ROWS && inputs > 0 {
        let dense;
        let data = match w.storage() {
            Storage::Bf16 => w.parameter().data,
            _ => {
                let count = outputs * inputs;
                dense = cuda.inner.device.block(op, 2 * count)?;
                let launch = cuda.inner.kernels.each(Kernel::Dequantise, count);
                launch.with(dense.address()).with(w.parameter()).with(count as u64).go(op)?;
                dense.address()
            }
        };
        if cuda.inner.large.borrow_mut().product(op, (x, data, *bias), out)? {
            return Ok(());
        }
    }
    let grid = [outputs.div_ceil(64) as u32, x.rows().div_ceil(64) as u32, 1];
    let launch = cuda.inner.kernels.launch(Kernel::ProductExact).grid(grid);
    let wide = u32::from(out.elements() == Activations::F32 && cuda.inner.activations == Activations::Bf16);
    launch
        .with(out.address())
        .with(x.address())
        .with(w.parameter())
        .with(bias.map_or(0, CudaTensor::address))
        .with(x.rows() as u32)
        .with(wide)
        .go(op)
}
