//! Key/value pages of one layer: `[page][kv_head][slot][head_dim]`, keys and values apart, written in place.

use super::CpuTensor;
use super::tensor::zeroed;
use crate::checks;
use crate::error::Result;
use crate::shapes::PageLayout;

/// The pages of one layer.
pub struct CpuPages {
    layout: PageLayout,
    count: usize,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl CpuPages {
    pub(super) fn new(layout: PageLayout, count: usize) -> Result<Self> {
        let elements = checks::pages(layout, count)?;
        Ok(Self { layout, count, keys: zeroed("pages", elements)?, values: zeroed("pages", elements)? })
    }

    pub(super) fn layout(&self) -> PageLayout {
        self.layout
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn keys(&self) -> &[f32] {
        &self.keys
    }

    pub(super) fn values(&self) -> &[f32] {
        &self.values
    }

    /// Where element 0 of a head lies for a token.
    pub(super) fn offset(&self, page: usize, head: usize, token: usize) -> usize {
        ((page * self.layout.kv_heads + head) * self.layout.page_tokens + token) * self.layout.head_dim
    }

    /// Operands were checked by [`checks::kv_write`].
    pub(super) fn write(&mut self, k: &CpuTensor, v: &CpuTensor, slots: &[u32]) {
        let PageLayout { page_tokens, kv_heads, head_dim } = self.layout;
        for (row, &slot) in slots.iter().enumerate() {
            let (page, token) = (slot as usize / page_tokens, slot as usize % page_tokens);
            for head in 0..kv_heads {
                let to = self.offset(page, head, token);
                let from = head * head_dim..(head + 1) * head_dim;
                self.keys[to..to + head_dim].copy_from_slice(&k.row(row)[from.clone()]);
                self.values[to..to + head_dim].copy_from_slice(&v.row(row)[from]);
            }
        }
    }
}
