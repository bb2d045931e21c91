//! Whisper's text decoder: learned positions, causal self attention over pages, full cross attention over the encoded
//! clip's pages, output tied to the embedding.
//!
//! Self and cross keys share one pool of pages a layer, under two block tables of a sequence. Cross keys and values are
//! computed once a sequence by [`Decoder::write_cross`].
//!
//! Source: Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision" (2022), section 2.2.

use weft_kernels::Backend;
use weft_kernels::shapes::{AttentionSpec, Mask, PagedSequence};

use super::config::WhisperConfig;
use super::layers::{Attention, EPSILON, FeedForward, heads};
use crate::checkpoint::Loader;
use crate::error::{EngineError, ErrorKind, Result};
use crate::families::StepBatch;
use crate::families::norm::Norm;

/// The text decoder.
pub(super) struct Decoder<B: Backend> {
    spec: AttentionSpec,
    tokens: B::Weight,
    positions: B::Weight,
    blocks: Vec<Block<B>>,
    norm: Norm<B>,
    /// An output matrix of its own; tied to `tokens` otherwise.
    output: Option<B::Weight>,
}

struct Block<B: Backend> {
    self_norm: Norm<B>,
    self_attention: Attention<B>,
    cross_norm: Norm<B>,
    cross_attention: Attention<B>,
    feed_forward: FeedForward<B>,
}

impl<B: Backend> Decoder<B> {
    pub(super) fn load(loader: &mut Loader<'_, B>, config: &WhisperConfig) -> Result<Self> {
        let (width, vocabulary) = (config.d_model, config.vocab_size);
        let name = "model.decoder";
        let tokens = loader.weight(&format!("{name}.embed_tokens.weight"), vocabulary, width)?;
        let positions = loader.weight(&format!("{name}.embed_positions.weight"), config.max_target_positions, width)?;
        let blocks = (0..config.decoder_layers).map(|layer| {
            let name = format!("{name}.layers.{layer}");
            Ok(Block {
                self_norm: Norm::layer(loader, &format!("{name}.self_attn_layer_norm"), width, EPSILON)?,
                self_attention: Attention::load(loader, &format!("{name}.self_attn"), width)?,
                cross_norm: Norm::layer(loader, &format!("{name}.encoder_attn_layer_norm"), width, EPSILON)?,
                cross_attention: Attention::load(loader, &format!("{name}.encoder_attn"), width)?,
                feed_forward: FeedForward::load(loader, &name, width, config.decoder_ffn_dim)?,
            })
        });
        let blocks = blocks.collect::<Result<_>>()?;
        let output = if config.tie_word_embeddings {
            loader.ignore("proj_out.weight");
            None
        } else {
            Some(loader.weight("proj_out.weight", vocabulary, width)?)
        };
        Ok(Self {
            spec: heads(width, config.decoder_attention_heads, Mask::Causal),
            tokens,
            positions,
            blocks,
            norm: Norm::layer(loader, &format!("{name}.layer_norm"), width, EPSILON)?,
            output,
        })
    }

    /// Heads of the pages.
    pub(super) fn spec(&self) -> &AttentionSpec {
        &self.spec
    }

    /// Blocks, each with its own pages.
    pub(super) fn layers(&self) -> usize {
        self.blocks.len()
    }

    /// Stores the keys and values of an encoded clip, row `i` in slot `slots[i]` of every layer.
    pub(super) fn write_cross(
        &self,
        backend: &B,
        encoded: &B::Tensor,
        slots: &[u32],
        pages: &mut [B::Pages],
    ) -> Result<()> {
        for (block, pages) in self.blocks.iter().zip(pages) {
            let [k, v] = block.cross_attention.key_value(backend, encoded)?;
            backend.kv_write(pages, &k, &v, slots)?;
        }
        Ok(())
    }

    /// See [`crate::families::Model::step`].
    pub(super) fn step(
        &self,
        backend: &B,
        batch: &StepBatch<'_, B>,
        pages: &mut [B::Pages],
    ) -> Result<Option<B::Tensor>> {
        let (own, cross) = views(batch)?;
        let cross_spec = AttentionSpec { mask: Mask::Full, ..self.spec };
        let positions: Vec<u32> = batch.positions.iter().map(|position| position[0]).collect();
        let tokens = backend.embed(&self.tokens, batch.ids)?;
        let mut x = backend.add(&tokens, &backend.embed(&self.positions, &positions)?)?;
        for (block, pages) in self.blocks.iter().zip(pages) {
            let [q, k, v] = block.self_attention.project(backend, &block.self_norm.forward(backend, &x)?)?;
            backend.kv_write(pages, &k, &v, batch.slots)?;
            let attended = backend.paged_attention(&q, pages, &own, &self.spec)?;
            x = block.self_attention.finish(backend, &x, &attended)?;
            let q = block.cross_attention.query(backend, &block.cross_norm.forward(backend, &x)?)?;
            let attended = backend.paged_attention(&q, pages, &cross, &cross_spec)?;
            x = block.cross_attention.finish(backend, &x, &attended)?;
            x = block.feed_forward.forward(backend, &x)?;
        }
        let wanted: Vec<u32> = (batch.sequences.iter().filter(|sequence| sequence.wants_logits))
            .map(|sequence| sequence.rows.end as u32 - 1)
            .collect();
        if wanted.is_empty() {
            return Ok(None);
        }
        if wanted.len() < batch.ids.len() {
            x = backend.gather_rows(&x, &wanted)?;
        }
        let x = self.norm.forward(backend, &x)?;
        Ok(Some(backend.linear(&x, self.output.as_ref().unwrap_or(&self.tokens), None)?))
    }
}

/// The sequences of a batch as self attention and as cross attention see them.
fn views<'a, B: Backend>(batch: &StepBatch<'a, B>) -> Result<(Vec<PagedSequence<'a>>, Vec<PagedSequence<'a>>)> {
    let internal = |message: &str| EngineError::new(ErrorKind::Internal, message);
    if !batch.media.is_empty() {
        return Err(internal("Whisper attends to its clip; nothing is spliced into the prompt"));
    }
    let mut own = Vec::with_capacity(batch.sequences.len());
    let mut cross = Vec::with_capacity(batch.sequences.len());
    for sequence in batch.sequences {
        let (table, frames) = sequence.cross.ok_or_else(|| internal("a Whisper sequence needs an encoded clip"))?;
        let query = sequence.rows.clone();
        own.push(PagedSequence { query: query.clone(), context: sequence.context, table: sequence.table });
        cross.push(PagedSequence { query, context: frames, table });
    }
    Ok((own, cross))
}
