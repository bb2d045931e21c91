//! The decoder itself: embedding, layers, final norm, logits. Text models and multimodal ones share it.

use weft_kernels::Backend;
use weft_kernels::shapes::{PageLayout, PagedSequence};

use super::config::DecoderConfig;
use super::layer::{Attend, Layer, Step};
use crate::checkpoint::Loader;
use crate::error::{EngineError, ErrorKind, Result};
use crate::families::{KvLayout, StepBatch};

/// Weights of a decoder.
pub(crate) struct Decoder<B: Backend> {
    config: DecoderConfig,
    page_tokens: usize,
    embedding: B::Weight,
    layers: Vec<Layer<B>>,
    norm: B::Tensor,
    /// `None` when the embedding table also makes the logits.
    head: Option<B::Weight>,
}

impl<B: Backend> Decoder<B> {
    pub(crate) fn load(loader: &mut Loader<'_, B>, config: DecoderConfig, page_tokens: usize) -> Result<Self> {
        let (vocabulary, hidden) = (config.vocabulary, config.hidden);
        let embedding = loader.weight("model.embed_tokens.weight", vocabulary, hidden)?;
        let mut layers = Vec::new();
        for layer in 0..config.layers {
            layers.push(Layer::load(loader, &format!("model.layers.{layer}"), &config, layer)?);
        }
        let norm = loader.vector("model.norm.weight", hidden)?;
        let head = if config.tied.unwrap_or(!loader.has("lm_head.weight")) {
            // Some exporters write the shared table twice.
            loader.ignore("lm_head.weight");
            None
        } else {
            Some(loader.weight("lm_head.weight", vocabulary, hidden)?)
        };
        Ok(Self { config, page_tokens, embedding, layers, norm, head })
    }

    pub(crate) const fn kv(&self) -> KvLayout {
        let DecoderConfig { layers, kv_heads, head_dim, .. } = self.config;
        let pages = PageLayout { page_tokens: self.page_tokens, kv_heads, head_dim };
        KvLayout { layers, pages, cross: false, element_bytes: size_of::<f32>() }
    }

    /// See [`crate::families::Model::step`].
    pub(crate) fn step(
        &self,
        backend: &B,
        batch: &StepBatch<'_, B>,
        pages: &mut [B::Pages],
    ) -> Result<Option<B::Tensor>> {
        self.check(batch, pages.len())?;
        let positions: Vec<u32> = batch.positions.iter().flatten().copied().collect();
        let step = Step {
            backend,
            rotary: backend.rotary_table(&self.config.rotary, &positions, 3)?,
            slots: batch.slots,
            sequences: batch
                .sequences
                .iter()
                .map(|s| PagedSequence { query: s.rows.clone(), context: s.context, table: s.table })
                .collect(),
        };
        let mut residual = self.embed(backend, batch)?;
        let mut normed = backend.rms_norm(&residual, &self.layers[0].input_norm, self.config.eps)?;
        let (last, inner) = self.layers.split_last().ok_or_else(|| internal("a decoder has layers"))?;
        for (i, layer) in inner.iter().enumerate() {
            let query = layer.project(&step, &normed, &mut pages[i])?;
            let attend = Attend { query: &query, pages: &pages[i], sequences: &step.sequences };
            let (sum, product) = layer.finish(backend, &residual, attend)?;
            let next_norm = &self.layers[i + 1].input_norm;
            (residual, normed) = backend.add_rms_norm(&product, &sum, next_norm, self.config.eps)?;
        }
        // Beyond its keys and values, the last layer matters only to the rows whose logits are wanted.
        let query = last.project(&step, &normed, &mut pages[inner.len()])?;
        let (rows, sequences) = wanted(batch);
        if rows.is_empty() {
            return Ok(None);
        }
        let query = backend.gather_rows(&query, &rows)?;
        let residual = backend.gather_rows(&residual, &rows)?;
        let attend = Attend { query: &query, pages: &pages[inner.len()], sequences: &sequences };
        let (sum, product) = last.finish(backend, &residual, attend)?;
        let (_, normed) = backend.add_rms_norm(&product, &sum, &self.norm, self.config.eps)?;
        let head = self.head.as_ref().unwrap_or(&self.embedding);
        Ok(Some(backend.logits(&normed, head)?))
    }

    /// Token embeddings with encoder output in the places of media.
    fn embed(&self, backend: &B, batch: &StepBatch<'_, B>) -> Result<B::Tensor> {
        let mut x = backend.embed(&self.embedding, batch.ids)?;
        for media in batch.media {
            let (rows, width) = backend.shape(media.encoded);
            let end = media.at + media.rows.len();
            if width != self.config.hidden || media.rows.end > rows || end > batch.ids.len() {
                let detail = format!("media rows {:?} of {rows}x{width} do not fit at row {}", media.rows, media.at);
                return Err(internal(&detail));
            }
            let places: Vec<u32> = (media.at as u32..end as u32).collect();
            x = if media.rows == (0..rows) {
                backend.scatter_rows(&x, &places, media.encoded)?
            } else {
                let chosen: Vec<u32> = media.rows.clone().map(|row| row as u32).collect();
                backend.scatter_rows(&x, &places, &backend.gather_rows(media.encoded, &chosen)?)?
            };
        }
        Ok(x)
    }

    fn check(&self, batch: &StepBatch<'_, B>, page_layers: usize) -> Result<()> {
        let rows = batch.ids.len();
        let covered = batch.sequences.iter().try_fold(0, |at, s| (s.rows.start == at).then_some(s.rows.end));
        if rows == 0 || batch.positions.len() != rows || batch.slots.len() != rows || covered != Some(rows) {
            return Err(internal("ids, positions, slots and sequences of a step must cover the same rows"));
        }
        if page_layers != self.layers.len() {
            return Err(internal(&format!("{page_layers} page pools for {} layers", self.layers.len())));
        }
        match batch.ids.iter().find(|&&id| id as usize >= self.config.vocabulary) {
            None => Ok(()),
            Some(id) => {
                let detail = format!("token {id} is outside the vocabulary of {}", self.config.vocabulary);
                Err(EngineError::new(ErrorKind::Malformed, detail))
            }
        }
    }
}

/// Last rows of the sequences that want logits, and these sequences with one query row each.
fn wanted<'a, B: Backend>(batch: &StepBatch<'a, B>) -> (Vec<u32>, Vec<PagedSequence<'a>>) {
    let wanting = batch.sequences.iter().filter(|sequence| sequence.wants_logits && !sequence.rows.is_empty());
    wanting
        .enumerate()
        .map(|(i, s)| (s.rows.end as u32 - 1, PagedSequence { query: i..i + 1, context: s.context, table: s.table }))
        .unzip()
}

fn internal(detail: &str) -> EngineError {
    EngineError::new(ErrorKind::Internal, detail)
}
