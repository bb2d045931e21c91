//! From kernel sources in the binary to machine code for one chip: compiled by NVRTC at first start, kept on disk.
//!
//! The name of a kept file is a hash of source, chip, options and compiler version, so a file is right or not there; it
//! is written under another name and renamed, so it is whole or not there.

#![expect(unsafe_code, reason = "the compiler's C interface")]

use std::ffi::CString;
use std::path::PathBuf;

use cudarc::nvrtc::{result as nvrtc, sys};

use super::{Activations, libraries};
use crate::error::{KernelError, Result};

/// Sources that are compiled together.
pub(super) struct Unit {
    pub(super) name: &'static str,
    sources: &'static [&'static str],
    /// Whether the unit only knows bf16 activations.
    pub(super) narrow_only: bool,
}

const PRELUDE: &str = include_str!("../../cuda/prelude.cu");
const ATTENTION: &str = include_str!("../../cuda/attention.cu");

/// Every unit; a kernel names its unit by the index here.
pub(super) const UNITS: [Unit; 8] = [
    Unit { name: "rows", sources: &[include_str!("../../cuda/rows.cu")], narrow_only: false },
    Unit { name: "norms", sources: &[include_str!("../../cuda/norms.cu")], narrow_only: false },
    Unit { name: "positions", sources: &[include_str!("../../cuda/positions.cu")], narrow_only: false },
    Unit { name: "exact", sources: &[include_str!("../../cuda/exact.cu")], narrow_only: false },
    Unit { name: "attention", sources: &[ATTENTION], narrow_only: false },
    Unit { name: "sample", sources: &[include_str!("../../cuda/sample.cu")], narrow_only: false },
    Unit { name: "stream", sources: &[include_str!("../../cuda/stream.cu")], narrow_only: true },
    Unit { name: "flash", sources: &[ATTENTION, include_str!("../../cuda/flash.cu")], narrow_only: true },
];

impl Unit {
    /// Whether a backend with these activations needs it.
    pub(super) fn serves(&self, activations: Activations) -> bool {
        activations == Activations::Bf16 || !self.narrow_only
    }

    fn source(&self) -> String {
        std::iter::once(&PRELUDE).chain(self.sources).copied().collect::<Vec<_>>().join("\n")
    }
}

fn options(chip: &str, activations: Activations) -> Vec<String> {
    let act = match activations {
        Activations::F32 => "-DACT_F32",
        Activations::Bf16 => "-DACT_BF16",
    };
    vec![format!("--gpu-architecture={chip}"), "--std=c++17".into(), act.into()]
}

/// Version of the compiler that would be used.
fn version() -> Result<(i32, i32)> {
    libraries::compiler()?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the library is there; the arguments are two integers.
    let status = unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) };
    status.result().map_err(|e| KernelError::Device(format!("kernel compiler: {e}")))?;
    Ok((major, minor))
}

/// Machine code of a unit, compiled now.
pub(super) fn compile(unit: &Unit, chip: &str, activations: Activations) -> Result<Vec<u8>> {
    libraries::compiler()?;
    let fault = |what: String| KernelError::Device(format!("kernels {:?} for {chip}: {what}", unit.name));
    let text = |text: String| CString::new(text).map_err(|e| fault(e.to_string()));
    let (source, name) = (text(unit.source())?, text(format!("{}.cu", unit.name))?);
    let program = nvrtc::create_program(&source, Some(&name)).map_err(|e| fault(e.to_string()))?;
    // SAFETY: the program was just made and is destroyed once, after its last use; buffers have the sizes asked for.
    unsafe {
        let outcome = nvrtc::compile_program(program, &options(chip, activations));
        let code = match outcome {
            Ok(()) => {
                let mut size = 0;
                let mut code = Vec::new();
                sys::nvrtcGetCUBINSize(program, &raw mut size)
                    .result()
                    .and_then(|()| {
                        code = vec![0u8; size];
                        sys::nvrtcGetCUBIN(program, code.as_mut_ptr().cast()).result()
                    })
                    .map(|()| code)
                    .map_err(|e| fault(e.to_string()))
            }
            Err(error) => {
                let log = nvrtc::get_program_log(program).unwrap_or_default();
                let log: String = log.iter().map(|&c| c as u8 as char).filter(|c| *c != '\0').take(2000).collect();
                Err(fault(format!("{error}\n{log}")))
            }
        };
        nvrtc::destroy_program(program).map_err(|e| fault(e.to_string()))?;
        code
    }
}

/// Where compiled kernels are kept: `$WEFT_KERNEL_CACHE`, or below the user's cache folder, or below the temporary one.
fn folder() -> PathBuf {
    let var = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    var("WEFT_KERNEL_CACHE")
        .or_else(|| var("XDG_CACHE_HOME").map(|cache| cache.join("weft/kernels")))
        .or_else(|| var("HOME").map(|home| home.join(".cache/weft/kernels")))
        .unwrap_or_else(|| std::env::temp_dir().join("weft-kernels"))
}

/// Machine code of a unit, from disk where it is kept.
pub(super) fn load(unit: &Unit, chip: &str, activations: Activations) -> Result<Vec<u8>> {
    let version = version()?;
    let mut hash = blake3::Hasher::new();
    hash.update(unit.source().as_bytes());
    hash.update(format!("{:?} {version:?}", options(chip, activations)).as_bytes());
    let hash = hash.finalize().to_hex();
    let file = folder().join(format!("{}-{chip}-{}.cubin", unit.name, &hash[..32]));
    if let Ok(code) = std::fs::read(&file) {
        return Ok(code);
    }
    tracing::info!(kernels = unit.name, chip, "compiling kernels; kept for the next start");
    let code = compile(unit, chip, activations)?;
    if let Err(error) = keep(&file, &code) {
        tracing::warn!(%error, file = %file.display(), "compiled kernels could not be kept");
    }
    Ok(code)
}

fn keep(file: &std::path::Path, code: &[u8]) -> std::io::Result<()> {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let partial = file.with_extension(format!("{}.partial", std::process::id()));
    std::fs::write(&partial, code)?;
    std::fs::rename(&partial, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every kernel, for a chip of each generation that is supported; needs the compiler, but no GPU.
    #[test]
    fn every_kernel_compiles_for_every_chip() {
        if let Err(missing) = libraries::compiler() {
            assert!(std::env::var_os("CI").is_none(), "{missing}");
            println!("skipped: {missing}");
            return;
        }
        for chip in ["sm_80", "sm_89", "sm_90a"] {
            for activations in [Activations::F32, Activations::Bf16] {
                for unit in UNITS.iter().filter(|unit| unit.serves(activations)) {
                    let code = compile(unit, chip, activations).unwrap();
                    assert!(code.starts_with(b"\x7fELF"), "{} for {chip} is no machine code", unit.name);
                }
            }
        }
    }

    #[test]
    fn a_fault_in_a_source_is_told_with_its_unit() {
        if libraries::compiler().is_err() {
            return;
        }
        let broken =
            Unit { name: "broken", sources: &["extern \"C\" __global__ void f() { nonsense; }"], narrow_only: false };
        let message = compile(&broken, "sm_90a", Activations::F32).unwrap_err().to_string();
        assert!(message.contains("broken") && message.contains("nonsense"), "{message}");
    }
}
