//! The CUDA backend: one GPU, kernels of our own compiled for its chip at first start, cuBLASLt for large products.
//!
//! Activations are float32 (as exact as the CPU, the same bits whatever the batch) or bf16 with sums in float32. Which
//! operations keep bits apart from the batch in bf16 is said in `products` and `attention`. Nothing here runs on a machine
//! without a driver: [`CudaBackend::probe`] says why.

mod attention;
mod compile;
mod device;
mod large;
mod launch;
mod libraries;
mod operations;
mod products;
mod sample;
mod staging;
mod tensor;

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use cudarc::driver::result;

use self::device::{Block, Device, fault};
use self::large::Large;
use self::launch::{Kernel, Kernels};
use self::staging::Staging;
pub use self::tensor::{CudaPages, CudaTensor, CudaWeight};
use crate::backend::Backend;
use crate::error::{KernelError, Result};

/// Element type of activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Activations {
    /// float32.
    F32,
    /// bfloat16, summed in float32.
    Bf16,
}

impl Activations {
    const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

/// A GPU as a device. Clones share its stream and its memory; all stay on the thread that opened it.
#[derive(Clone)]
pub struct CudaBackend {
    inner: Rc<Inner>,
}

struct Inner {
    staging: RefCell<Staging>,
    large: RefCell<Large>,
    /// Counters of `decode_*`; zero between launches.
    arrived: Block,
    kernels: Kernels,
    activations: Activations,
    device: Rc<Device>,
}

/// Numbers on the device; holds them when the ring could not.
struct Numbers {
    address: u64,
    _own: Option<Block>,
}

impl CudaBackend {
    /// Name of the GPU that would be used, or why none can be; cheap, and starts nothing on it.
    ///
    /// # Errors
    /// The library or the card that is missing, and what to install.
    pub fn probe() -> Result<String> {
        let name = device::first()?.1;
        libraries::compiler().and_then(|()| libraries::products())?;
        Ok(name)
    }

    /// The first GPU, with its kernels loaded (compiled, at the first start).
    ///
    /// # Errors
    /// What [`CudaBackend::probe`] finds missing, and faults of the driver.
    pub fn open(activations: Activations) -> Result<Self> {
        Self::probe()?;
        let device = Device::open()?;
        let kernels = Kernels::load(&device, activations)?;
        if activations == Activations::Bf16 {
            attention::prepare(&kernels)?;
        }
        let arrived = device.lasting("cuda", 4 * attention::MOST_PAIRS)?;
        arrived.zero("cuda", arrived.bytes())?;
        let large = RefCell::new(Large::new(&device)?);
        let staging = RefCell::new(Staging::new(&device)?);
        Ok(Self { inner: Rc::new(Inner { staging, large, arrived, kernels, activations, device }) })
    }

    /// A tensor to be filled.
    fn tensor(&self, op: &'static str, shape: (usize, usize), elements: Activations) -> Result<CudaTensor> {
        let bytes = shape.0.checked_mul(shape.1).and_then(|count| count.checked_mul(elements.bytes()));
        let bytes = bytes.ok_or(KernelError::OutOfMemory { op, bytes: usize::MAX })?;
        Ok(CudaTensor::new(self.inner.device.block(op, bytes)?, shape, elements))
    }

    /// A tensor of activations to be filled.
    fn result(&self, op: &'static str, shape: (usize, usize)) -> Result<CudaTensor> {
        self.tensor(op, shape, self.inner.activations)
    }

    fn numbers(&self, op: &'static str, values: &[u32]) -> Result<Numbers> {
        let mut staging = self.inner.staging.borrow_mut();
        if let Some(address) = staging.numbers(values)? {
            return Ok(Numbers { address, _own: None });
        }
        let own = self.inner.device.block(op, size_of_val(values))?;
        staging.bulk(&own, size_of_val(values), |at, piece| {
            for (to, value) in piece.as_chunks_mut::<4>().0.iter_mut().zip(&values[at / 4..]) {
                *to = value.to_le_bytes();
            }
        })?;
        Ok(Numbers { address: own.address(), _own: Some(own) })
    }

    /// Rows of a tensor on the host.
    #[expect(unsafe_code, reason = "an asynchronous copy")]
    fn fetch(&self, op: &'static str, x: &CudaTensor, rows: Range<usize>) -> Result<Vec<f32>> {
        let (inner, count) = (&self.inner, rows.len() * x.cols());
        let from = x.address() + (rows.start * x.cols() * x.elements().bytes()) as u64;
        let mut values = vec![0.0f32; count];
        if count == 0 {
            return Ok(values);
        }
        let wide;
        let from = match x.elements() {
            Activations::F32 => from,
            Activations::Bf16 => {
                wide = inner.device.block(op, 4 * count)?;
                inner.kernels.each(Kernel::Widen, count).with(wide.address()).with(from).with(count as u64).go(op)?;
                wide.address()
            }
        };
        // SAFETY: both sides hold `count` values; the stream is waited for before the host memory is read.
        unsafe { result::memcpy_dtoh_async(&mut values, from, inner.device.stream) }.map_err(fault(op))?;
        inner.device.synchronize(op)?;
        Ok(values)
    }

    /// Rows moved by number: 16 bytes at a time where rows are whole pieces of that.
    fn move_rows(
        &self,
        op: &'static str,
        kernels: [Kernel; 2],
        out: &CudaTensor,
        x: &CudaTensor,
        rows: &[u32],
    ) -> Result<()> {
        let bytes = x.cols() * x.elements().bytes();
        let (kernel, units) = if bytes.is_multiple_of(16) { (kernels[0], bytes / 16) } else { (kernels[1], bytes / 2) };
        let numbers = self.numbers(op, rows)?;
        let count = rows.len() * units;
        let launch = self.inner.kernels.each(kernel, count).with(out.address()).with(x.address());
        launch.with(numbers.address).with(units as u32).with(count as u64).go(op)
    }

    /// Refuses a tensor of another element type than activations have.
    fn own(&self, op: &'static str, tensors: &[&CudaTensor]) -> Result<()> {
        match tensors.iter().all(|x| x.elements() == self.inner.activations) {
            true => Ok(()),
            false => Err(KernelError::Unsupported { op, detail: "tables and logits are not activations".into() }),
        }
    }
}

impl std::fmt::Debug for CudaBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.describe())
    }
}
