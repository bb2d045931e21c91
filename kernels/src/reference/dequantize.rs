//! Weight elements as `f32`, by candle's own decoders: an independent source for our formats.

use std::borrow::Cow;

use candle_core::Device;
use candle_core::quantized::{GgmlDType, QStorage, QTensor};

use crate::error::{KernelError, Result};
use crate::weights::{WeightData, WeightFormat};

pub(crate) fn dequantize(data: &WeightData<'_>) -> Result<Vec<f32>> {
    let dtype = match data.format {
        WeightFormat::F32 => {
            return Ok(data.bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect());
        }
        WeightFormat::F16 => {
            return Ok(data.bytes.as_chunks().0.iter().map(|b| half::f16::from_le_bytes(*b).to_f32()).collect());
        }
        WeightFormat::BF16 => {
            return Ok(data.bytes.as_chunks().0.iter().map(|b| half::bf16::from_le_bytes(*b).to_f32()).collect());
        }
        WeightFormat::Q4_0 => GgmlDType::Q4_0,
        WeightFormat::Q4_1 => GgmlDType::Q4_1,
        WeightFormat::Q5_0 => GgmlDType::Q5_0,
        WeightFormat::Q5_1 => GgmlDType::Q5_1,
        WeightFormat::Q8_0 => GgmlDType::Q8_0,
        WeightFormat::Q4K => GgmlDType::Q4K,
        WeightFormat::Q5K => GgmlDType::Q5K,
        WeightFormat::Q6K => GgmlDType::Q6K,
    };
    if data.bytes.is_empty() {
        return Ok(Vec::new());
    }
    // Fresh allocation: candle reads the blocks in place and wants them aligned.
    let bytes = Cow::Owned(data.bytes.to_vec());
    let decode = || -> candle_core::Result<Vec<f32>> {
        let storage = QStorage::from_data(bytes, &Device::Cpu, dtype)?;
        let tensor = QTensor::new(storage, (data.rows, data.cols))?;
        tensor.dequantize(&Device::Cpu)?.flatten_all()?.to_vec1()
    };
    decode().map_err(|e| KernelError::Device(format!("candle refused a {:?} weight: {e}", data.format)))
}
