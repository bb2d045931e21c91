//! The kernels by name, and putting one on the stream.
//!
//! Parameters are copied into words of eight bytes, so a launch needs no allocation. Their types and order must be those
//! of the kernel in `kernels/cuda`; nothing checks that but the parity suite.

#![expect(unsafe_code, reason = "launching kernels")]

use std::ffi::{CString, c_void};
use std::rc::Rc;

use cudarc::driver::sys::{CUfunction_attribute_enum as Attribute, CUmodule};
use cudarc::driver::{result, sys};

use super::Activations;
use super::compile::{self, UNITS};
use super::device::{Device, fault};
use crate::error::Result;

macro_rules! kernels {
    ($($unit:literal { $($kernel:ident = $name:literal),* $(,)? })*) => {
        /// A kernel.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Kernel { $($($kernel,)*)* }

        /// Unit and name of every kernel, in order.
        const NAMES: &[(&str, &str)] = &[$($(($unit, $name),)*)*];
    };
}

kernels! {
    "rows" {
        Widen = "widen", Narrow = "narrow", GatherWide = "gather_wide", GatherNarrow = "gather_narrow", ScatterWide = "scatter_wide",
        ScatterNarrow = "scatter_narrow", MeanRows = "mean_rows", Unroll = "unroll", Add = "add", Activate = "activate",
        Gated = "gated", Embed = "embed", Repitch = "repitch", Dequantise = "dequantise",
    }
    "norms" { RmsNorm = "rms_norm", AddRmsNorm = "add_rms_norm", LayerNorm = "layer_norm" }
    "positions" {
        RotaryTable = "rotary_table", Rotary = "rotary", KvWrite = "kv_write", RotaryKvWrite = "rotary_kv_write",
    }
    "exact" { ProductExact = "product_exact" }
    "attention" { AttentionExact = "attention_exact" }
    "sample" { GreedyWide = "greedy_wide", GreedyNarrow = "greedy_narrow" }
    "stream" {
        DenseSide1x1 = "stream_dense_1_1", DenseSide1x2 = "stream_dense_1_2",
        DenseSide1x4 = "stream_dense_1_4", DenseSide1x8 = "stream_dense_1_8",
        DenseSide4x1 = "stream_dense_4_1", DenseSide4x2 = "stream_dense_4_2",
        DenseSide4x4 = "stream_dense_4_4", DenseSide4x8 = "stream_dense_4_8",
        Codes4Side1x1 = "stream_codes4_1_1", Codes4Side1x2 = "stream_codes4_1_2",
        Codes4Side1x4 = "stream_codes4_1_4", Codes4Side1x8 = "stream_codes4_1_8",
        Codes4Side4x1 = "stream_codes4_4_1", Codes4Side4x2 = "stream_codes4_4_2",
        Codes4Side4x4 = "stream_codes4_4_4", Codes4Side4x8 = "stream_codes4_4_8",
        Codes8Side1x1 = "stream_codes8_1_1", Codes8Side1x2 = "stream_codes8_1_2",
        Codes8Side1x4 = "stream_codes8_1_4", Codes8Side1x8 = "stream_codes8_1_8",
        Codes8Side4x1 = "stream_codes8_4_1", Codes8Side4x2 = "stream_codes8_4_2",
        Codes8Side4x4 = "stream_codes8_4_4", Codes8Side4x8 = "stream_codes8_4_8",
    }
    "flash" {
        Flash64 = "flash_64", Flash80 = "flash_80", Flash96 = "flash_96", Flash128 = "flash_128",
        Decode64 = "decode_64", Decode80 = "decode_80", Decode96 = "decode_96", Decode128 = "decode_128",
    }
}

/// Loaded kernels.
pub(super) struct Kernels {
    modules: Vec<CUmodule>,
    /// By number of the kernel; null where its unit does not serve these activations.
    functions: Vec<sys::CUfunction>,
    device: Rc<Device>,
}

impl Kernels {
    pub(super) fn load(device: &Rc<Device>, activations: Activations) -> Result<Self> {
        const OP: &str = "loading kernels";
        let mut all =
            Self { modules: Vec::new(), functions: vec![std::ptr::null_mut(); NAMES.len()], device: device.clone() };
        for unit in UNITS.iter().filter(|unit| unit.serves(activations)) {
            let code = compile::load(unit, &device.chip, activations)?;
            // SAFETY: the code is a whole cubin; the module is unloaded when the kernels are dropped.
            let module = unsafe { result::module::load_data(code.as_ptr().cast()) }.map_err(fault(OP))?;
            all.modules.push(module);
            for (number, (_, name)) in NAMES.iter().enumerate().filter(|(_, (of, _))| *of == unit.name) {
                let name = CString::new(*name).unwrap_or_default();
                // SAFETY: the module was just loaded.
                all.functions[number] = unsafe { result::module::get_function(module, name) }.map_err(fault(OP))?;
            }
        }
        Ok(all)
    }

    /// Lets a kernel use this much shared memory beyond the usual 48 KiB.
    pub(super) fn allow_shared(&self, kernel: Kernel, bytes: u32) -> Result<()> {
        let attribute = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let function = self.functions[kernel as usize];
        // SAFETY: the function belongs to a loaded module.
        unsafe { result::function::set_function_attribute(function, attribute, bytes as i32) }
            .map_err(fault("loading kernels"))
    }

    pub(super) fn launch(&self, kernel: Kernel) -> Launch<'_> {
        Launch {
            kernels: self,
            kernel,
            grid: [1; 3],
            block: 256,
            shared: 0,
            words: [0; WORDS],
            starts: [0; PARAMETERS],
            filled: 0,
            count: 0,
        }
    }

    /// One thread for eight elements.
    pub(super) fn eights(&self, kernel: Kernel, count: usize) -> Launch<'_> {
        self.each(kernel, count.div_ceil(8))
    }

    /// One thread an element.
    pub(super) fn each(&self, kernel: Kernel, count: usize) -> Launch<'_> {
        self.launch(kernel).grid([count.div_ceil(256) as u32, 1, 1])
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        let _ = self.device.synchronize("unloading kernels");
        for &module in &self.modules {
            // SAFETY: loaded by `load`, and nothing of it is running. An error has nobody to go to.
            let _ = unsafe { result::module::unload(module) };
        }
    }
}

const WORDS: usize = 48;
const PARAMETERS: usize = 20;

/// Plain data with the layout that the kernels expect.
///
/// # Safety
/// `repr(C)` or a primitive, without references, at most 40 words.
pub(super) unsafe trait Parameter: Copy {}

// SAFETY: primitives.
unsafe impl Parameter for u32 {}
// SAFETY: as above.
unsafe impl Parameter for u64 {}
// SAFETY: as above.
unsafe impl Parameter for f32 {}

/// A launch in the making.
pub(super) struct Launch<'a> {
    kernels: &'a Kernels,
    kernel: Kernel,
    grid: [u32; 3],
    block: u32,
    shared: u32,
    words: [u64; WORDS],
    starts: [usize; PARAMETERS],
    filled: usize,
    count: usize,
}

impl Launch<'_> {
    /// Blocks.
    pub(super) fn grid(mut self, grid: [u32; 3]) -> Self {
        self.grid = grid;
        self
    }

    /// Threads of a block, and bytes of dynamic shared memory.
    pub(super) fn block(mut self, threads: u32, shared: u32) -> Self {
        (self.block, self.shared) = (threads, shared);
        self
    }

    /// The next parameter.
    pub(super) fn with<T: Parameter>(mut self, value: T) -> Self {
        let words = size_of::<T>().div_ceil(8);
        assert!(self.filled + words <= WORDS && self.count < PARAMETERS, "parameters of {:?}", self.kernel);
        // SAFETY: the words have room for the value, by the assertion, and are aligned to eight bytes, more than any
        // parameter needs.
        unsafe { std::ptr::write(self.words[self.filled..].as_mut_ptr().cast::<T>(), value) };
        self.starts[self.count] = self.filled;
        self.filled += words;
        self.count += 1;
        self
    }

    /// Puts it on the stream. A launch without blocks does nothing.
    pub(super) fn go(mut self, op: &'static str) -> Result<()> {
        if self.grid.contains(&0) {
            return Ok(());
        }
        let function = self.kernels.functions[self.kernel as usize];
        assert!(!function.is_null(), "{:?} does not serve these activations", self.kernel);
        let mut parameters = [std::ptr::null_mut::<c_void>(); PARAMETERS];
        for (parameter, &start) in parameters.iter_mut().zip(&self.starts[..self.count]) {
            *parameter = self.words[start..].as_mut_ptr().cast();
        }
        let [x, y, z] = self.grid;
        // Every kernel of ours waits for its inputs by itself, so the next may start before this one has ended.
        let mut attribute = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: self.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.shared,
            hStream: self.kernels.device.stream,
            attrs: &raw mut attribute,
            numAttrs: u32::from(self.kernels.device.overlaps),
        };
        // SAFETY: the function is loaded; parameters are those of the kernel (held to it by the parity suite), and the
        // memory they name belongs to live blocks, which are recycled in the order of this stream.
        unsafe {
            sys::cuLaunchKernelEx(&raw const config, function, parameters.as_mut_ptr(), std::ptr::null_mut()).result()
        }
        .map_err(fault(op))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_names_a_unit_and_its_source_defines_it() {
        for (unit, _) in NAMES {
            assert!(UNITS.iter().any(|known| known.name == *unit), "{unit}");
        }
        assert_eq!(NAMES[Kernel::Decode128 as usize], ("flash", "decode_128"));
        assert_eq!(NAMES[Kernel::RmsNorm as usize], ("norms", "rms_norm"));
    }
}
