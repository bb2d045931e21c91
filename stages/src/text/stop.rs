//! Stop texts across token borders: what could still become one is held back.

/// What came out of a scan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scan {
    /// Text that is safe to show.
    pub text: String,
    /// A stop text was found; `text` ends before it and nothing follows.
    pub stopped: bool,
}

/// Watches a growing text for stop texts.
#[derive(Debug, Clone, Default)]
pub struct StopTexts {
    stops: Vec<String>,
    held: String,
}

impl StopTexts {
    /// A watch for these texts; empty ones are left out.
    pub fn new(stops: impl IntoIterator<Item = String>) -> Self {
        Self { stops: stops.into_iter().filter(|stop| !stop.is_empty()).collect(), held: String::new() }
    }

    /// Takes the next piece.
    pub fn push(&mut self, delta: &str) -> Scan {
        self.held.push_str(delta);
        let found = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str())).min();
        if let Some(at) = found {
            self.held.truncate(at);
            return Scan { text: std::mem::take(&mut self.held), stopped: true };
        }
        let keep = self.stops.iter().map(|stop| open_tail(&self.held, stop)).max().unwrap_or(0);
        let held = self.held.split_off(self.held.len() - keep);
        Scan { text: std::mem::replace(&mut self.held, held), stopped: false }
    }

    /// What was held back, once no more text comes.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Length of the longest end of `text` with which `stop` begins.
fn open_tail(text: &str, stop: &str) -> usize {
    (1..stop.len().min(text.len() + 1))
        .rev()
        .find(|&length| stop.is_char_boundary(length) && text.ends_with(&stop[..length]))
        .unwrap_or(0)
}
