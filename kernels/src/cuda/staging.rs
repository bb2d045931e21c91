//! Host to device through page-locked memory: bulk data in two halves in turn, and the small arrays of numbers that
//! operations take (rows, slots, block tables) through a ring.
//!
//! ```text
//! ring   [ quarter | quarter | quarter | quarter ]   a quarter is filled again when an event says that all work launched
//!                                                    before it was left is done
//! ```
//! The layers of a model ask for the same numbers one after another: what was sent last is found and not sent again.

#![expect(unsafe_code, reason = "page-locked memory and asynchronous copies from it")]

use std::rc::Rc;

use cudarc::driver::{result, sys};

use super::device::{Block, Device, fault};
use crate::error::Result;

const OP: &str = "upload";
const QUARTER: usize = 2 << 20;
const HALF: usize = 8 << 20;
/// Arrays that may be found again.
const REMEMBERED: usize = 8;

/// Page-locked bytes and an event that says when the device has read them.
struct Pinned {
    bytes: *mut u8,
    len: usize,
    read: sys::CUevent,
}

impl Pinned {
    fn new(len: usize) -> Result<Self> {
        // SAFETY: freed once, on drop; the context is current.
        let bytes = unsafe { result::malloc_host(len, 0) }.map_err(fault(OP))?;
        let read = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING).map_err(fault(OP))?;
        Ok(Self { bytes: bytes.cast(), len, read })
    }

    /// The bytes, once nothing reads them any more.
    fn writable(&mut self) -> Result<&mut [u8]> {
        // SAFETY: the event was created; the memory has `len` bytes and, with the event passed, no reader.
        unsafe {
            result::event::synchronize(self.read).map_err(fault(OP))?;
            Ok(std::slice::from_raw_parts_mut(self.bytes, self.len))
        }
    }

    fn mark(&self, device: &Device) -> Result<()> {
        // SAFETY: event and stream are alive.
        unsafe { result::event::record(self.read, device.stream) }.map_err(fault(OP))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: made by `new`; the device waits for the stream before it is dropped. Errors have nobody to go to.
        unsafe {
            let _ = result::event::synchronize(self.read);
            let _ = result::free_host(self.bytes.cast());
            let _ = result::event::destroy(self.read);
        }
    }
}

/// See the module's documentation.
pub(super) struct Staging {
    halves: [Pinned; 2],
    turn: usize,
    quarters: [Pinned; 4],
    ring: Block,
    /// Which quarter is being filled, and up to where.
    quarter: usize,
    filled: usize,
    remembered: Vec<(Vec<u32>, u64)>,
    device: Rc<Device>,
}

impl Staging {
    pub(super) fn new(device: &Rc<Device>) -> Result<Self> {
        let pinned = Pinned::new;
        Ok(Self {
            halves: [pinned(HALF)?, pinned(HALF)?],
            turn: 0,
            quarters: [pinned(QUARTER)?, pinned(QUARTER)?, pinned(QUARTER)?, pinned(QUARTER)?],
            ring: device.lasting(OP, 4 * QUARTER)?,
            quarter: 0,
            filled: 0,
            remembered: Vec::new(),
            device: device.clone(),
        })
    }

    /// Fills `bytes` of a block from offset 0, piece by piece: `fill(first byte, piece)` writes each piece. Pieces are
    /// multiples of 4 KiB but for the last.
    pub(super) fn bulk(&mut self, to: &Block, bytes: usize, mut fill: impl FnMut(usize, &mut [u8])) -> Result<()> {
        for at in (0..bytes).step_by(HALF) {
            let piece = HALF.min(bytes - at);
            let half = &mut self.halves[self.turn];
            self.turn ^= 1;
            let host = &mut half.writable()?[..piece];
            fill(at, host);
            // SAFETY: the block has room by the caller's shapes; the host memory is not written before the event.
            unsafe { result::memcpy_htod_async(to.address() + at as u64, host, self.device.stream) }
                .map_err(fault(OP))?;
            half.mark(&self.device)?;
        }
        Ok(())
    }

    /// Device address of these numbers, good for launches made before some thousands of further calls; `None` when they
    /// are too many for the ring.
    pub(super) fn numbers(&mut self, values: &[u32]) -> Result<Option<u64>> {
        let bytes = size_of_val(values).next_multiple_of(16).max(16);
        if bytes > QUARTER {
            return Ok(None);
        }
        if let Some((_, address)) = self.remembered.iter().find(|(kept, _)| kept == values) {
            return Ok(Some(*address));
        }
        if self.filled + bytes > QUARTER {
            self.quarters[self.quarter].mark(&self.device)?;
            self.quarter = (self.quarter + 1) % self.quarters.len();
            self.filled = 0;
            // What was sent long ago may be overwritten from here on.
            self.remembered.clear();
            self.quarters[self.quarter].writable()?;
        }
        let quarter = &self.quarters[self.quarter];
        let address = self.ring.address() + (self.quarter * QUARTER + self.filled) as u64;
        // SAFETY: the quarter has room and what is there had its last reader before the quarter was entered.
        unsafe {
            let to = quarter.bytes.add(self.filled).cast::<u32>();
            std::ptr::copy_nonoverlapping(values.as_ptr(), to, values.len());
            let sent = std::slice::from_raw_parts(to, values.len());
            result::memcpy_htod_async(address, sent, self.device.stream).map_err(fault(OP))?;
        }
        self.filled += bytes;
        if self.remembered.len() == REMEMBERED {
            self.remembered.remove(0);
        }
        self.remembered.push((values.to_vec(), address));
        Ok(Some(address))
    }
}
