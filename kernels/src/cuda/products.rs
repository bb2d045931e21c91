//! Products: which kernel takes which.
//!
//! | activations | rows | kernel | same bits whatever the number of rows |
//! |---|---|---|---|
//! | f32 | any | `product_exact` | yes |
//! | bf16 | up to 64 | `stream_*` | yes |
//! | bf16 | more | cuBLASLt | no: it chooses by the number of rows |
//! | bf16 | up to 64, inputs not a multiple of 32 | `product_exact` | yes |

use super::launch::{Kernel, Parameter};
use super::tensor::{CudaTensor, CudaWeight, Storage, WeightParameter};
use super::{Activations, CudaBackend};
use crate::error::{KernelError, Result};

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
        // Neighbours of one kind share a launch.
        let kind = |w: &CudaWeight| (w.storage(), side(w.shape().0));
        let alike = rest.iter().take(PARTS).take_while(|((other, _), _)| kind(other) == kind(w)).count();
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

/// Tiles of 16 outputs that a block of the streaming kernels makes: more spare reading the activations again, fewer leave
/// many short waves of blocks. By the weight's outputs alone, since the order of additions depends on it.
fn side(outputs: usize) -> usize {
    if outputs < 65_536 { 1 } else { 4 }
}

fn stream(
    cuda: &CudaBackend,
    op: &'static str,
    x: &CudaTensor,
    products: &[(&Product<'_>, &CudaTensor)],
) -> Result<()> {
    let side = side(products[0].0.0.shape().0);
    let mut tiles = 0;
    let mut part = |(product, out): &(&Product<'_>, &CudaTensor)| {
        let first_tile = tiles;
        tiles += out.cols().div_ceil(16 * side) as u32;
        let bias = product.1.map_or(0, CudaTensor::address);
        let wide = u32::from(out.elements() == Activations::F32);
        Part { weight: product.0.parameter(), bias, out: out.address(), first_tile, wide }
    };
    let mut all = Parts { part: [part(&products[0]); PARTS], count: products.len() as u32, rows: x.rows() as u32 };
    for (i, product) in products.iter().enumerate().skip(1) {
        all.part[i] = part(product);
    }
    let kernels = match (products[0].0.0.storage(), side) {
        (Storage::Codes4, 1) => {
            [Kernel::Codes4Side1x1, Kernel::Codes4Side1x2, Kernel::Codes4Side1x4, Kernel::Codes4Side1x8]
        }
        (Storage::Codes4, _) => {
            [Kernel::Codes4Side4x1, Kernel::Codes4Side4x2, Kernel::Codes4Side4x4, Kernel::Codes4Side4x8]
        }
        (Storage::Codes8, 1) => {
            [Kernel::Codes8Side1x1, Kernel::Codes8Side1x2, Kernel::Codes8Side1x4, Kernel::Codes8Side1x8]
        }
        (Storage::Codes8, _) => {
            [Kernel::Codes8Side4x1, Kernel::Codes8Side4x2, Kernel::Codes8Side4x4, Kernel::Codes8Side4x8]
        }
        (_, 1) => [Kernel::DenseSide1x1, Kernel::DenseSide1x2, Kernel::DenseSide1x4, Kernel::DenseSide1x8],
        (_, _) => [Kernel::DenseSide4x1, Kernel::DenseSide4x2, Kernel::DenseSide4x4, Kernel::DenseSide4x8],
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
        if let Some(padded) = w.aligned() {
            return aligned(cuda, op, (x, padded), (*w, *bias), out);
        }
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

/// Smaller matrices are not worth a second copy.
const ALIGNED_FROM: usize = 256;

/// Gives a dense weight whose rows are no whole 16-byte pieces a padded copy: without, large products take a slow path.
pub(super) fn align(cuda: &CudaBackend, w: &mut CudaWeight) -> Result<()> {
    let (outputs, inputs) = w.shape();
    let odd = !outputs.is_multiple_of(8) || !inputs.is_multiple_of(8);
    let large = outputs.min(inputs) >= ALIGNED_FROM;
    if !(odd && large && cuda.inner.activations == Activations::Bf16 && w.storage() == Storage::Bf16) {
        return Ok(());
    }
    let (rows, cols) = (outputs.next_multiple_of(8), inputs.next_multiple_of(8));
    let copy = cuda.inner.device.lasting("weight", 2 * rows * cols)?;
    copy.zero("weight", 2 * rows * cols)?;
    repitch(cuda, "weight", (copy.address(), cols), (w.parameter().data, inputs), outputs)?;
    w.align(copy);
    Ok(())
}

/// Copies rows into rows of another width, cut or padded with zeros.
fn repitch(cuda: &CudaBackend, op: &'static str, to: (u64, usize), from: (u64, usize), rows: usize) -> Result<()> {
    let launch = cuda.inner.kernels.each(Kernel::Repitch, rows * to.1).with(to.0).with(from.0);
    launch.with(to.1 as u32).with(from.1 as u32).with((rows * to.1) as u64).go(op)
}

/// A large product through padded copies of its operands and of its result.
fn aligned(
    cuda: &CudaBackend,
    op: &'static str,
    (x, weight): (&CudaTensor, &super::device::Block),
    (w, bias): Product<'_>,
    out: &CudaTensor,
) -> Result<()> {
    let (outputs, inputs) = w.shape();
    let (rows, cols) = (outputs.next_multiple_of(8), inputs.next_multiple_of(8));
    let padded;
    let x = if cols == inputs {
        x
    } else {
        padded = cuda.result(op, (x.rows(), cols))?;
        repitch(cuda, op, (padded.address(), cols), (x.address(), inputs), x.rows())?;
        &padded
    };
    let bias = match bias {
        Some(bias) if rows != outputs => {
            let wide = cuda.result(op, (1, rows))?;
            repitch(cuda, op, (wide.address(), rows), (bias.address(), outputs), 1)?;
            Some(wide)
        }
        given => given.cloned(),
    };
    let result = if rows == outputs { out.clone() } else { cuda.tensor(op, (x.rows(), rows), out.elements())? };
    if !cuda.inner.large.borrow_mut().product(op, (x, weight.address(), bias.as_ref()), &result)? {
        return Err(KernelError::Unsupported { op, detail: format!("no algorithm for {outputs} x {inputs}") });
    }
    if rows != outputs {
        let units = out.elements().bytes() / 2;
        let (to, from) = ((out.address(), outputs * units), (result.address(), rows * units));
        repitch(cuda, op, to, from, out.rows())?;
    }
    Ok(())
}
