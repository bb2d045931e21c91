//! Encoder runs of the simulation: where they stand, piece by piece, as on the device.

use std::time::Duration;

use super::{Fault, MediumState, Simulation, layers};
use crate::families::{EncoderPart, Piece, Place};
use crate::request::Class;
use crate::scheduler::snapshot::Tower;
use crate::scheduler::{Claim, Kind, RunKey, Running, Spend, Work, next_piece};

/// Of a run that nobody waits for.
pub(super) const NOBODY: Claim = Claim { class: Class::Batch, since: Duration::ZERO, deadline: None };

/// Media on their way through a tower.
pub(super) struct Run {
    pub(super) media: Vec<u64>,
    tower: Tower,
    units: usize,
    left: usize,
    place: Place,
}

impl Run {
    pub(super) fn running(&self, key: RunKey, claim: Claim) -> Running {
        Running { key, model: 0, tower: self.tower, claim, units: self.units, left: self.left, place: self.place }
    }

    /// Stands between two layers, or behind the last.
    fn stand(&mut self) {
        let part = if self.left > 0 { EncoderPart::Project } else { EncoderPart::Leave };
        self.place = Place { part, rows: self.units, whole: self.left > 0 };
    }

    /// Takes a piece that ran; whether it was the last.
    fn ran(&mut self, piece: Piece) -> Result<bool, Fault> {
        match piece {
            Piece::Layers(count) if self.place.whole && count > 0 && count <= self.left => {
                self.left -= count;
                self.stand();
            }
            Piece::Rows(rows) if rows > 0 && rows <= self.place.rows => {
                self.place.rows -= rows;
                self.place.whole = false;
                match self.place.part {
                    _ if self.place.rows > 0 => {}
                    EncoderPart::Enter => self.stand(),
                    EncoderPart::Project => {
                        self.place = Place { part: EncoderPart::Finish, rows: self.units, whole: false };
                    }
                    EncoderPart::Finish => {
                        self.left -= 1;
                        self.stand();
                    }
                    EncoderPart::Leave => return Ok(true),
                }
            }
            _ => return Err(format!("{piece:?} at {:?}", self.place)),
        }
        Ok(false)
    }
}

impl Simulation {
    pub(super) fn begin(&mut self, media: Vec<u64>) -> Result<RunKey, Fault> {
        let found: Option<Vec<_>> = media.iter().map(|id| Some(self.media.get(id)?.medium)).collect();
        let found = found.filter(|found| !found.is_empty()).ok_or("a planned medium is not there")?;
        let tower = found[0].tower;
        if found.iter().any(|medium| medium.tower != tower) {
            return Err("a run over two towers".into());
        }
        let units = found.iter().map(|medium| medium.units).sum();
        self.work(Work { model: 0, kind: Kind::Begin(tower), size: units }, 1);
        for id in &media {
            self.waiting.remove(id);
            if let Some(job) = self.media.get_mut(id) {
                job.state = MediumState::InRun;
            }
        }
        self.started += 1;
        let key = RunKey(self.started);
        let place = Place { part: EncoderPart::Enter, rows: units, whole: false };
        let left = layers(&self.truth, tower);
        self.runs.insert(key, Run { media, tower, units, left, place });
        Ok(key)
    }

    /// Pieces of a run for what it may spend since `began`.
    pub(super) fn advance(&mut self, key: RunKey, spend: Spend, began: Duration) -> Result<(), Fault> {
        let begun = self.runs.get(&key).ok_or("a planned run is not there")?.left;
        let mut first = true;
        loop {
            let run = self.runs.get(&key).ok_or("a planned run is not there")?;
            let mut running = run.running(key, NOBODY);
            let left = match spend {
                Spend::Within(time) => time.saturating_sub(self.now - began),
                Spend::Layers(layers) => {
                    running.left = run.left.saturating_sub(begun.saturating_sub(layers));
                    if running.left == 0 && run.left > 0 {
                        return Ok(());
                    }
                    Duration::MAX
                }
            };
            let Some(next) = next_piece(&self.cost, &running, left, first) else { return Ok(()) };
            if next.predicted > left && !(first && matches!(next.piece, Piece::Rows(rows) if rows <= 32)) {
                return Err(format!("a piece of {:?} in {left:?}", next.predicted));
            }
            first = false;
            self.work(next.work, next.count);
            let run = self.runs.get_mut(&key).ok_or("a planned run is not there")?;
            if run.ran(next.piece)? {
                self.encoded(key);
                return Ok(());
            }
        }
    }

    fn encoded(&mut self, key: RunKey) {
        let Some(Run { media, .. }) = self.runs.remove(&key) else { return };
        let fails = media.iter().any(|id| self.media[id].medium.broken);
        for id in &media {
            if let Some(job) = self.media.get_mut(id) {
                job.state = match (fails, media.len()) {
                    (false, _) => MediumState::Ready,
                    (true, 1) => MediumState::Failed,
                    (true, _) => {
                        self.waiting.insert(*id);
                        MediumState::Waiting { alone: true }
                    }
                };
            }
        }
    }
}
