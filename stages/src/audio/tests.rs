//! Samples between decoder and mel, which the front door does not show.

use bytes::Bytes;
use serde_json::Value;

use super::decode::{Clip, open};
use super::resample::Resampler;
use crate::cancel::Cancel;
use crate::limits::Limits;

macro_rules! odd {
    ($($name:literal)*) => {
        &[$(($name, include_bytes!(concat!("../../../tests/golden/media_fixtures/odd/", $name)))),*]
    };
}

const CLIPS: &[(&str, &[u8])] = odd! {
    "clip.wav" "clip.flac" "clip_cbr.mp3" "clip_vbr.mp3" "clip.ogg" "clip.opus" "clip_opus.webm" "clip_end.m4a"
    "clip_front.m4a" "clip.aac" "clip_24bit.wav" "clip_float.wav" "clip_8bit.wav" "clip_mulaw.wav" "clip_stereo44.wav"
    "clip_stereo44.mp3" "clip_8k.wav" "clip_stereo44.expected.flac"
};

fn decode(bytes: &'static [u8], rate: u32) -> Clip {
    open(Bytes::from_static(bytes)).unwrap().decode(rate, &Limits::default().audio, &Cancel::default()).unwrap()
}

fn find(name: &str) -> &'static [u8] {
    CLIPS.iter().find(|clip| clip.0 == name).unwrap().1
}

#[test]
fn every_decoder_gives_the_envelope_that_ffmpeg_gives() {
    let listing: Value =
        serde_json::from_slice(include_bytes!("../../../tests/golden/media_fixtures/odd/odd.json")).unwrap();
    let mut wrong = Vec::new();
    for entry in listing["audio"].as_array().unwrap().iter().filter(|entry| entry["expect"] == "ok") {
        let (file, rate) = (entry["file"].as_str().unwrap(), entry["rate"].as_u64().unwrap() as u32);
        let clip = decode(find(file), rate);
        let expected: Vec<f64> =
            entry["envelope_50ms"].as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect();
        let energy = |piece: &[f32]| piece.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / piece.len() as f64;
        let step = rate as usize / 20;
        let envelope: Vec<f64> = clip.samples.chunks(step).map(|piece| energy(piece).sqrt() * 1000.0).collect();
        let gaps = || expected.iter().zip(&envelope).map(|(a, b)| (a - b).abs());
        let (mean, most) = (gaps().sum::<f64>() / expected.len() as f64, gaps().fold(0.0, f64::max));
        let samples = clip.samples.len() as f64 / f64::from(rate);
        println!("{file:<20} {samples:.4} s  envelope differs by {mean:.2} on average, {most:.2} at most, of 223");
        if mean > 1.0 {
            wrong.push((file.to_owned(), mean));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn stereo_is_averaged_before_the_rate_changes() {
    let clip = decode(find("clip_stereo44.wav"), 16_000);
    let expected = decode(find("clip_stereo44.expected.flac"), 16_000);
    assert_eq!(clip.samples.len(), expected.samples.len());
    let gap: f64 = clip.samples.iter().zip(&expected.samples).map(|(a, b)| f64::from(a - b).powi(2)).sum();
    let power: f64 = expected.samples.iter().map(|v| f64::from(*v).powi(2)).sum();
    let decibel = 10.0 * (power / gap).log10();
    println!("44.1 kHz stereo to 16 kHz mono: {decibel:.1} dB from soxr");
    assert!(decibel > 40.0, "{decibel}");
}

fn tone(rate: u32, hertz: f64, samples: usize) -> Vec<f32> {
    (0..samples).map(|i| (std::f64::consts::TAU * hertz * i as f64 / f64::from(rate)).sin() as f32).collect()
}

fn convert(samples: &[f32], from: u32, to: u32, piece: usize) -> Vec<f32> {
    let mut resampler = Resampler::new(from, to).unwrap();
    let mut out = Vec::new();
    for piece in samples.chunks(piece) {
        resampler.push(piece, &mut out).unwrap();
    }
    resampler.finish(&mut out).unwrap();
    out
}

#[test]
fn a_tone_keeps_frequency_level_phase_and_length() {
    for from in [8_000, 11_025, 22_050, 24_000, 32_000, 44_100, 48_000, 96_000, 44_101] {
        let out = convert(&tone(from, 440.0, from as usize * 2), from, 16_000, 1152);
        assert_eq!(out.len(), 32_000, "{from}");
        let expected = tone(16_000, 440.0, 32_000);
        // Away from the ends, where the tone begins and stops at once.
        let worst = (3000..29_000).map(|i| (out[i] - expected[i]).abs()).fold(0.0, f32::max);
        println!("{from} to 16000: differs by {worst:.2e} at most");
        assert!(worst < 2e-3, "{from}: {worst}");
    }
}

#[test]
fn what_the_new_rate_cannot_hold_is_silenced_and_not_folded() {
    let out = convert(&tone(48_000, 11_000.0, 96_000), 48_000, 16_000, 960);
    let loudest = out[3000..29_000].iter().fold(0f32, |most, value| most.max(value.abs()));
    assert!(loudest < 1e-3, "{loudest}");
}

#[test]
fn pieces_do_not_change_the_result() {
    let samples = tone(44_100, 1234.5, 30_000);
    let whole = convert(&samples, 44_100, 16_000, 30_000);
    assert_eq!(whole, convert(&samples, 44_100, 16_000, 7));
    assert_eq!(convert(&samples[..5], 44_100, 16_000, 5).len(), 2);
}
