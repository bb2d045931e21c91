//! One GPU, one stream on it, and memory whose reuse follows the stream's order.
//!
//! Everything is launched on one stream, so a block that was given back can be handed out again at once: whatever still
//! reads it was launched before. Freed blocks stay in lists by size class; they go back to the driver when it has no room
//! left. Ordering is by that stream alone: cudarc's tracking of events is not used.

#![expect(unsafe_code, reason = "the driver's C interface")]

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use cudarc::driver::sys::{self, CUdevice_attribute_enum as Attribute};
use cudarc::driver::{DriverError, result};

use super::libraries;
use crate::error::{KernelError, Result};

/// A failure of the driver in an operation.
pub(super) fn fault(op: &'static str) -> impl Fn(DriverError) -> KernelError {
    move |error| KernelError::Device(format!("{op}: {error}"))
}

/// The first GPU and its name.
pub(super) fn first() -> Result<(sys::CUdevice, String)> {
    const OP: &str = "the NVIDIA driver";
    libraries::driver()?;
    result::init().map_err(fault(OP))?;
    if result::device::get_count().map_err(fault(OP))? == 0 {
        return Err(KernelError::Device("the NVIDIA driver reports no GPU".into()));
    }
    let ordinal = result::device::get(0).map_err(fault(OP))?;
    Ok((ordinal, result::device::get_name(ordinal).map_err(fault(OP))?))
}

/// The GPU.
pub(super) struct Device {
    ordinal: sys::CUdevice,
    pub(super) stream: sys::CUstream,
    pub(super) name: String,
    pub(super) multiprocessors: u32,
    /// Whether a kernel can be started while the one before it ends.
    pub(super) overlaps: bool,
    /// For the compiler, such as `sm_90a`.
    pub(super) chip: String,
    free: RefCell<HashMap<usize, Vec<sys::CUdeviceptr>>>,
    /// Bytes taken from the driver.
    taken: Cell<usize>,
}

impl Device {
    /// The first GPU.
    pub(super) fn open() -> Result<Rc<Self>> {
        const OP: &str = "opening the GPU";
        let (ordinal, name) = first()?;
        // SAFETY: the driver is initialised and the device exists; the context is released when the device is dropped.
        let attribute = |which| unsafe { result::device::get_attribute(ordinal, which) }.map_err(fault(OP));
        let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        if major < 8 {
            let detail = format!("{name} has compute capability {major}.{minor}; 8.0 is the least that is supported");
            return Err(KernelError::Unsupported { op: "cuda", detail });
        }
        let multiprocessors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32;
        // SAFETY: as above.
        unsafe {
            let context = result::primary_ctx::retain(ordinal).map_err(fault(OP))?;
            result::ctx::set_current(context).map_err(fault(OP))?;
        }
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking).map_err(fault(OP))?;
        // The `a` stands for instructions of this very chip, which Hopper has.
        let chip = format!("sm_{major}{minor}{}", if (major, minor) == (9, 0) { "a" } else { "" });
        let free = RefCell::default();
        // For comparisons, and for a driver that gets it wrong.
        let overlaps = major >= 9 && std::env::var_os("WEFT_CUDA_NO_OVERLAP").is_none();
        Ok(Rc::new(Self { ordinal, stream, name, multiprocessors, overlaps, chip, free, taken: Cell::new(0) }))
    }

    /// At least `bytes`, with unspecified contents, recycled when dropped.
    pub(super) fn block(self: &Rc<Self>, op: &'static str, bytes: usize) -> Result<Block> {
        let class = class(bytes);
        let recycled = self.free.borrow_mut().get_mut(&class).and_then(Vec::pop);
        let address = match recycled {
            Some(address) => address,
            None => self.take(op, class)?,
        };
        Ok(Block { address, class: Some(class), bytes: class, device: self.clone() })
    }

    /// Exactly `bytes`, for what stays: weights, pages.
    pub(super) fn lasting(self: &Rc<Self>, op: &'static str, bytes: usize) -> Result<Block> {
        let bytes = bytes.max(16);
        Ok(Block { address: self.take(op, bytes)?, class: None, bytes, device: self.clone() })
    }

    fn take(&self, op: &'static str, bytes: usize) -> Result<sys::CUdeviceptr> {
        // SAFETY: a plain allocation; it is freed by its block, or by the lists when the device is dropped.
        let mut got = unsafe { result::malloc_sync(bytes) };
        if got.is_err() {
            self.trim(op)?;
            // SAFETY: as above.
            got = unsafe { result::malloc_sync(bytes) };
        }
        match got {
            Ok(address) => {
                self.taken.set(self.taken.get() + bytes);
                Ok(address)
            }
            Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => Err(KernelError::OutOfMemory { op, bytes }),
            Err(error) => Err(fault(op)(error)),
        }
    }

    /// Gives recycled blocks back to the driver.
    fn trim(&self, op: &'static str) -> Result<()> {
        self.synchronize(op)?;
        for (class, blocks) in self.free.borrow_mut().drain() {
            for address in blocks {
                // SAFETY: a block of the list belongs to nobody, and nothing that reads it is running.
                unsafe { result::free_sync(address) }.map_err(fault(op))?;
                self.taken.set(self.taken.get() - class);
            }
        }
        Ok(())
    }

    /// Waits for everything launched.
    pub(super) fn synchronize(&self, op: &'static str) -> Result<()> {
        // SAFETY: the stream lives as long as the device.
        unsafe { result::stream::synchronize(self.stream) }.map_err(fault(op))
    }

    /// Free and total bytes of the card.
    pub(super) fn memory(&self) -> Result<(usize, usize)> {
        result::mem_get_info().map_err(fault("memory"))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // Errors here have nobody to go to: the process is ending, or the card is gone.
        let _ = self.trim("closing the GPU");
        // SAFETY: the last handle is being dropped; nothing uses stream or context afterwards.
        unsafe {
            let _ = result::stream::destroy(self.stream);
            let _ = result::primary_ctx::release(self.ordinal);
        }
    }
}

/// The size class of an allocation: four to a power of two, from 512 bytes.
fn class(bytes: usize) -> usize {
    let bytes = bytes.max(512);
    let step = (bytes.next_power_of_two() / 8).max(128);
    bytes.next_multiple_of(step)
}

/// Device memory. Dropping it recycles or frees it.
pub(super) struct Block {
    address: sys::CUdeviceptr,
    class: Option<usize>,
    bytes: usize,
    device: Rc<Device>,
}

impl Block {
    pub(super) fn address(&self) -> u64 {
        self.address
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Sets the first bytes to zero, in the stream's order.
    pub(super) fn zero(&self, op: &'static str, bytes: usize) -> Result<()> {
        debug_assert!(bytes <= self.bytes);
        // SAFETY: the block has that many bytes and outlives what is launched before it is dropped.
        unsafe { result::memset_d8_async(self.address, 0, bytes, self.device.stream) }.map_err(fault(op))
    }

    /// Copies device bytes to offset `at`, in the stream's order.
    pub(super) fn copy_from(&self, op: &'static str, at: usize, from: u64, bytes: usize) -> Result<()> {
        debug_assert!(at + bytes <= self.bytes);
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: both ranges belong to live blocks of this device, by the callers' shapes.
        unsafe { result::memcpy_dtod_async(self.address + at as u64, from, bytes, self.device.stream) }
            .map_err(fault(op))
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        match self.class {
            Some(class) => self.device.free.borrow_mut().entry(class).or_default().push(self.address),
            None => {
                // SAFETY: freeing waits for the device; nobody else holds the address.
                let _ = unsafe { result::free_sync(self.address) };
                self.device.taken.set(self.device.taken.get() - self.bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::class;

    #[test]
    fn classes_hold_what_they_promise_and_are_their_own_class() {
        let mut last = 0;
        for bytes in (1..20_000).chain([1 << 20, (1 << 20) + 1, 123_456_789]) {
            let size = class(bytes);
            assert!(size >= bytes && size <= 512.max(bytes + bytes / 4), "{bytes} in {size}");
            assert_eq!(class(size), size);
            assert!(size >= last || bytes == 1 << 20);
            last = size;
        }
    }
}
