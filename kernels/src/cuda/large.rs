//! Large bf16 products through cuBLASLt, with one plan a shape, chosen once.

#![expect(unsafe_code, reason = "cuBLASLt's C interface")]

use std::collections::HashMap;
use std::ffi::c_void;
use std::rc::Rc;

use cudarc::cublaslt::result::{self as lt, CublasError};
use cudarc::cublaslt::sys;

use super::device::{Block, Device};
use super::tensor::CudaTensor;
use super::{Activations, libraries};
use crate::error::{KernelError, Result};

const WORKSPACE: usize = 64 << 20;

fn fault(op: &'static str) -> impl Fn(CublasError) -> KernelError {
    move |error| KernelError::Device(format!("{op}: cuBLASLt: {error:?}"))
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Shape {
    rows: usize,
    inputs: usize,
    outputs: usize,
    bias: bool,
    wide: bool,
}

/// Descriptions of one product's operands and the algorithm for it.
struct Plan {
    product: sys::cublasLtMatmulDesc_t,
    weight: sys::cublasLtMatrixLayout_t,
    input: sys::cublasLtMatrixLayout_t,
    output: sys::cublasLtMatrixLayout_t,
    algorithm: sys::cublasLtMatmulAlgo_t,
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: made by `plan`, once each. Errors have nobody to go to.
        unsafe {
            let _ = lt::destroy_matmul_desc(self.product);
            let _ = lt::destroy_matrix_layout(self.weight);
            let _ = lt::destroy_matrix_layout(self.input);
            let _ = lt::destroy_matrix_layout(self.output);
        }
    }
}

/// The library's handle, its plans and its workspace.
pub(super) struct Large {
    handle: sys::cublasLtHandle_t,
    /// `None` where the library has no algorithm.
    plans: HashMap<Shape, Option<Plan>>,
    workspace: Block,
    device: Rc<Device>,
}

impl Large {
    pub(super) fn new(device: &Rc<Device>) -> Result<Self> {
        libraries::products()?;
        let workspace = device.lasting("cuda", WORKSPACE)?;
        let handle = lt::create_handle().map_err(fault("cuda"))?;
        Ok(Self { handle, plans: HashMap::new(), workspace, device: device.clone() })
    }

    /// `out = x W^T + bias` for a dense bf16 weight; false when there is no algorithm for the shape.
    pub(super) fn product(
        &mut self,
        op: &'static str,
        (x, weight, bias): (&CudaTensor, u64, Option<&CudaTensor>),
        out: &CudaTensor,
    ) -> Result<bool> {
        let shape = Shape {
            rows: x.rows(),
            inputs: x.cols(),
            outputs: out.cols(),
            bias: bias.is_some(),
            wide: out.elements() == Activations::F32,
        };
        if !self.plans.contains_key(&shape) {
            let plan = plan(self.handle, shape).map_err(fault(op))?;
            self.plans.insert(shape, plan);
        }
        let Some(Some(plan)) = self.plans.get(&shape) else { return Ok(false) };
        let (one, zero) = (1.0f32, 0.0f32);
        // SAFETY: the plan's handles are alive; addresses are live blocks of the plan's shapes; the stream is the one
        // that recycles them. The bias attribute is one pointer.
        unsafe {
            if let Some(bias) = bias {
                let address = bias.address();
                let attribute = sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER;
                lt::set_matmul_desc_attribute(plan.product, attribute, (&raw const address).cast(), 8)
                    .map_err(fault(op))?;
            }
            lt::matmul(
                self.handle,
                plan.product,
                (&raw const one).cast(),
                (&raw const zero).cast(),
                weight as *const c_void,
                plan.weight,
                x.address() as *const c_void,
                plan.input,
                out.address() as *const c_void,
                plan.output,
                out.address() as *mut c_void,
                plan.output,
                &raw const plan.algorithm,
                self.workspace.address() as *mut c_void,
                WORKSPACE,
                self.device.stream.cast(),
            )
            .map_err(fault(op))?;
        }
        Ok(true)
    }
}

impl Drop for Large {
    fn drop(&mut self) {
        self.plans.clear();
        // SAFETY: made by `new`; the stream's work is waited for first. An error has nobody to go to.
        unsafe {
            let _ = self.device.synchronize("cuda");
            let _ = lt::destroy_handle(self.handle);
        }
    }
}

/// The library counts columns first: the result `[outputs, rows]` is weight `[inputs, outputs]`, transposed, times input
/// `[inputs, rows]`; a bias runs along the result's first dimension.
fn plan(handle: sys::cublasLtHandle_t, shape: Shape) -> std::result::Result<Option<Plan>, CublasError> {
    use sys::cublasLtMatmulDescAttributes_t as Attribute;
    let (bf16, f32) = (sys::cudaDataType_t::CUDA_R_16BF, sys::cudaDataType_t::CUDA_R_32F);
    let (rows, inputs, outputs) = (shape.rows as u64, shape.inputs as u64, shape.outputs as u64);
    let product = lt::create_matmul_desc(sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, f32)?;
    /// `CUBLAS_OP_T`.
    const TRANSPOSED: i32 = 1;
    let transposed = TRANSPOSED;
    let weight = lt::create_matrix_layout(bf16, inputs, outputs, inputs as i64)?;
    let input = lt::create_matrix_layout(bf16, inputs, rows, inputs as i64)?;
    let output = lt::create_matrix_layout(if shape.wide { f32 } else { bf16 }, outputs, rows, outputs as i64)?;
    // SAFETY: handles were just made; attributes get values of their types.
    unsafe {
        let transpose = (&raw const transposed).cast();
        lt::set_matmul_desc_attribute(product, Attribute::CUBLASLT_MATMUL_DESC_TRANSA, transpose, 4)?;
        if shape.bias {
            let epilogue = sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS as i32;
            let kind = bf16 as i32;
            lt::set_matmul_desc_attribute(
                product,
                Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE,
                (&raw const epilogue).cast(),
                4,
            )?;
            lt::set_matmul_desc_attribute(
                product,
                Attribute::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
                (&raw const kind).cast(),
                4,
            )?;
        }
        let preference = lt::create_matmul_pref()?;
        let room = sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        let workspace = WORKSPACE;
        lt::set_matmul_pref_attribute(preference, room, (&raw const workspace).cast(), 8)?;
        let found = lt::get_matmul_algo_heuristic(handle, product, weight, input, output, output, preference);
        lt::destroy_matmul_pref(preference)?;
        Ok(found.ok().map(|found| Plan { product, weight, input, output, algorithm: found.algo }))
    }
}
