//! Whether the libraries that the backend opens at run time are there, and what to do when one is not.
//!
//! Nothing of CUDA is linked: every library is looked for first, since opening a missing one later would panic.

#![expect(unsafe_code, reason = "looking for shared libraries")]

use crate::error::{KernelError, Result};

fn need(present: bool, library: &str, remedy: &str) -> Result<()> {
    match present {
        true => Ok(()),
        false => Err(KernelError::Device(format!("{library} was not found; {remedy}"))),
    }
}

/// The driver, which comes with every NVIDIA GPU that works.
pub(super) fn driver() -> Result<()> {
    // SAFETY: opens the library and closes it again.
    let present = unsafe { cudarc::driver::sys::is_culib_present() };
    need(present, "the NVIDIA driver library (libcuda.so)", "install the NVIDIA driver, version 580 or later")
}

/// The compiler of kernels.
pub(super) fn compiler() -> Result<()> {
    // SAFETY: as above.
    let present = unsafe { cudarc::nvrtc::sys::is_culib_present() };
    let remedy = "install CUDA 13's NVRTC (Debian: cuda-nvrtc-13-0; pip: nvidia-cuda-nvrtc) and let LD_LIBRARY_PATH name its folder";
    need(present, "the kernel compiler (libnvrtc.so.13)", remedy)
}

/// Large matrix products.
pub(super) fn products() -> Result<()> {
    // SAFETY: as above.
    let present = unsafe { cudarc::cublaslt::sys::is_culib_present() };
    let remedy =
        "install CUDA 13's cuBLAS (Debian: libcublas-13-0; pip: nvidia-cublas) and let LD_LIBRARY_PATH name its folder";
    need(present, "the matrix product library (libcublasLt.so.13)", remedy)
}
