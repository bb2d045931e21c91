//! Norms, as layers have them before and behind their products.

use weft_kernels::Backend;

use crate::checkpoint::Loader;
use crate::error::Result;

/// A norm over the columns of each row, with its weights.
pub(crate) enum Norm<B: Backend> {
    /// By the root of the mean square.
    Rms { weight: B::Tensor, eps: f32 },
    /// By mean and variance.
    Layer { weight: B::Tensor, bias: B::Tensor, eps: f32 },
}

impl<B: Backend> Norm<B> {
    /// Loads `{name}.weight`.
    pub(crate) fn rms(loader: &mut Loader<'_, B>, name: &str, width: usize, eps: f32) -> Result<Self> {
        Ok(Self::Rms { weight: loader.vector(&format!("{name}.weight"), width)?, eps })
    }

    /// Loads `{name}.weight` and `{name}.bias`.
    pub(crate) fn layer(loader: &mut Loader<'_, B>, name: &str, width: usize, eps: f32) -> Result<Self> {
        let weight = loader.vector(&format!("{name}.weight"), width)?;
        Ok(Self::Layer { weight, bias: loader.vector(&format!("{name}.bias"), width)?, eps })
    }

    /// The normed rows.
    pub(crate) fn forward(&self, backend: &B, x: &B::Tensor) -> Result<B::Tensor> {
        Ok(match self {
            Self::Rms { weight, eps } => backend.rms_norm(x, weight, *eps)?,
            Self::Layer { weight, bias, eps } => backend.layer_norm(x, weight, Some(bias), *eps)?,
        })
    }

    /// `x + residual`, and that sum normed.
    pub(crate) fn forward_sum(
        &self,
        backend: &B,
        x: &B::Tensor,
        residual: &B::Tensor,
    ) -> Result<(B::Tensor, B::Tensor)> {
        match self {
            Self::Rms { weight, eps } => Ok(backend.add_rms_norm(x, residual, weight, *eps)?),
            Self::Layer { .. } => {
                let sum = backend.add(x, residual)?;
                let normed = self.forward(backend, &sum)?;
                Ok((sum, normed))
            }
        }
    }
}
