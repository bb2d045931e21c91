//! What a conversation is made of.

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Speaker {
    /// Instructions.
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
}

impl Speaker {
    /// The role's name in chat templates.
    pub const fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
        }
    }
}

/// A piece of a turn. `M` is whatever stands for a medium: a lease in the service, nothing in tests.
#[derive(Debug, Clone, PartialEq)]
pub enum Content<M> {
    /// Text. Special tokens and placeholders typed in it stay text.
    Text(String),
    /// A picture.
    Image(M),
    /// A clip.
    Audio(M),
}

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn<M> {
    /// Who.
    pub speaker: Speaker,
    /// What, in order.
    pub content: Vec<Content<M>>,
}

impl<M> Turn<M> {
    /// A turn of text alone.
    pub fn text(speaker: Speaker, text: impl Into<String>) -> Self {
        Self { speaker, content: vec![Content::Text(text.into())] }
    }

    /// Its texts, in order.
    pub fn texts(&self) -> impl Iterator<Item = &str> + Clone {
        self.content.iter().filter_map(|content| match content {
            Content::Text(text) => Some(text.as_str()),
            Content::Image(_) | Content::Audio(_) => None,
        })
    }
}
